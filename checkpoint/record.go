package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// recordVersion is the only record format there is.
const recordVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The checksum is the last field and covers every byte before it, so that a
// record with fields of a later release still verifies. Stores keep the bytes as
// they are (a jsonb column would reorder them).
const (
	crcPrefix = `,"crc":"crc32c:`
	crcLen    = len(crcPrefix) + 8 + len(`"}`)
)

// Encode writes rec as the bytes a store keeps. ErrTooLarge above MaxRecordBytes.
func Encode(rec Record) ([]byte, error) {
	rec.V = recordVersion
	body, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("encode checkpoint record: %w", err)
	}
	body = body[:len(body)-1]
	out := fmt.Appendf(body, `%s%08x"}`, crcPrefix, crc32.Checksum(body, castagnoli))
	if len(out) > MaxRecordBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(out), MaxRecordBytes)
	}
	return out, nil
}

// Decode reads what Encode wrote. A torn or changed record is ErrRegressed:
// nothing falls back to an older one, since that would deliver again.
func Decode(data []byte) (Record, error) {
	var rec Record
	cut := len(data) - crcLen
	if cut < 1 || !bytes.HasPrefix(data[cut:], []byte(crcPrefix)) {
		return rec, fmt.Errorf("%w: torn record (%d bytes, no checksum)", ErrRegressed, len(data))
	}
	want := fmt.Sprintf(`%s%08x"}`, crcPrefix, crc32.Checksum(data[:cut], castagnoli))
	if string(data[cut:]) != want {
		return rec, fmt.Errorf("%w: torn record (its checksum should end %q)", ErrRegressed, want)
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, fmt.Errorf("%w: record is no JSON: %w", ErrRegressed, err)
	}
	if rec.V != recordVersion {
		return rec, fmt.Errorf("%w: record format v%d is newer than this mqb knows (v%d): upgrade this node", ErrForeign, rec.V, recordVersion)
	}
	return rec, nil
}
