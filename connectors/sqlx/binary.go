package sqlx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mqbridge/mqb/message"
)

// codec writes values of one type in PostgreSQL's binary form, which spares the
// server most of the parsing: the side of a COPY that is the slower one. Each takes
// only what it reads exactly as the server would; anything else (a timestamp with
// a name of a month, a number with spaces) goes to the server as text.
type codec uint8

const (
	codecNone codec = iota
	codecText
	codecBytea
	codecJSONB
	codecInt2
	codecInt4
	codecInt8
	codecFloat4
	codecFloat8
	codecBool
	codecTimestamptz
	codecTimestamp
	codecDate
	codecUUID
)

var codecs = map[uint32]codec{
	pgtype.TextOID: codecText, pgtype.VarcharOID: codecText, pgtype.BPCharOID: codecText, pgtype.JSONOID: codecText,
	pgtype.ByteaOID: codecBytea, pgtype.JSONBOID: codecJSONB,
	pgtype.Int2OID: codecInt2, pgtype.Int4OID: codecInt4, pgtype.Int8OID: codecInt8,
	pgtype.Float4OID: codecFloat4, pgtype.Float8OID: codecFloat8, pgtype.BoolOID: codecBool,
	pgtype.TimestamptzOID: codecTimestamptz, pgtype.TimestampOID: codecTimestamp, pgtype.DateOID: codecDate,
	pgtype.UUIDOID: codecUUID,
}

// What stands around the rows of a binary COPY.
var (
	binaryHeader  = append([]byte("PGCOPY\n\xff\r\n\x00"), make([]byte, 8)...)
	binaryTrailer = []byte{0xff, 0xff}
)

const binaryNull = "\xff\xff\xff\xff"

// append appends the content of a JSON string, or the text of another value, with
// its length. ok is false if it has to go as text.
func (c codec) append(dst, v []byte) (out []byte, ok bool) {
	switch c {
	case codecText, codecBytea:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
		return append(dst, v...), true
	case codecJSONB:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)+1))
		return append(append(dst, 1), v...), true
	case codecInt2:
		n, ok := parseInt(v, math.MaxInt16)
		return binary.BigEndian.AppendUint16(append(dst, 0, 0, 0, 2), uint16(n)), ok
	case codecInt4:
		n, ok := parseInt(v, math.MaxInt32)
		return binary.BigEndian.AppendUint32(append(dst, 0, 0, 0, 4), uint32(n)), ok
	case codecInt8:
		n, ok := parseInt(v, math.MaxInt64)
		return binary.BigEndian.AppendUint64(append(dst, 0, 0, 0, 8), uint64(n)), ok
	case codecFloat4:
		f, ok := parseFloat(v, 32)
		return binary.BigEndian.AppendUint32(append(dst, 0, 0, 0, 4), math.Float32bits(float32(f))), ok
	case codecFloat8:
		f, ok := parseFloat(v, 64)
		return binary.BigEndian.AppendUint64(append(dst, 0, 0, 0, 8), math.Float64bits(f)), ok
	case codecBool:
		switch string(v) {
		case "true":
			return append(dst, 0, 0, 0, 1, 1), true
		case "false":
			return append(dst, 0, 0, 0, 1, 0), true
		}
		return dst, false
	case codecTimestamptz, codecTimestamp:
		micros, zone, ok := parseTimestamp(v)
		ok = ok && zone == (c == codecTimestamptz)
		return binary.BigEndian.AppendUint64(append(dst, 0, 0, 0, 8), uint64(micros)), ok
	case codecDate:
		if len(v) != 10 {
			return dst, false
		}
		days, ok := parseDate(v)
		return binary.BigEndian.AppendUint32(append(dst, 0, 0, 0, 4), uint32(days)), ok
	case codecUUID:
		return appendUUID(dst, v)
	}
	return dst, false
}

// parseInt reads -?[0-9]+ in [-limit-1, limit].
func parseInt(v []byte, limit uint64) (n int64, ok bool) {
	negative := len(v) > 0 && v[0] == '-'
	if negative {
		v = v[1:]
		limit++
	}
	if len(v) == 0 || len(v) > 19 {
		return 0, false
	}
	var u uint64
	for _, c := range v {
		if c -= '0'; c > 9 {
			return 0, false
		} else {
			u = u*10 + uint64(c)
		}
	}
	if negative {
		return -int64(u), u <= limit
	}
	return int64(u), u <= limit
}

// parseFloat reads decimal numbers that are neither infinite nor rounded to zero.
func parseFloat(v []byte, bits int) (float64, bool) {
	if len(v) == 0 {
		return 0, false
	}
	zero := true
	for _, c := range v {
		switch {
		case c >= '1' && c <= '9':
			zero = false
		case c == '0', c == '.', c == '-':
		case c == 'e', c == 'E', c == '+':
			zero = false // with an exponent a zero goes as text
		default:
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(unsafe.String(&v[0], len(v)), bits)
	// Numbers at the edges of the range are the server's to judge.
	return f, err == nil && (zero || math.Abs(f) > 1e-30) && (bits == 64 || math.Abs(f) < 1e30)
}

// The calendar of PostgreSQL begins with 2000-01-01.
const (
	daysTo2000   = 730119 // from 0001-01-01
	microsPerDay = 86_400_000_000
)

// parseTimestamp reads 2006-01-02T15:04:05[.999999][Z|±07:00], also with a space
// in place of the T; zone says whether it has one.
func parseTimestamp(v []byte) (micros int64, zone, ok bool) {
	if len(v) < 19 || v[10] != 'T' && v[10] != ' ' || v[13] != ':' || v[16] != ':' {
		return 0, false, false
	}
	days, ok := parseDate(v[:10])
	hour, minute, second := two(v[11:]), two(v[14:]), two(v[17:])
	if !ok || hour > 23 || minute > 59 || second > 59 {
		return 0, false, false
	}
	micros = int64(days)*microsPerDay + (int64(hour)*3600+int64(minute)*60+int64(second))*1e6
	v = v[19:]
	if len(v) > 0 && v[0] == '.' {
		unit, n := int64(100_000), 1
		for ; n < len(v) && v[n]-'0' <= 9; n++ {
			if unit == 0 {
				return 0, false, false // to be rounded
			}
			micros += int64(v[n]-'0') * unit
			unit /= 10
		}
		if n == 1 {
			return 0, false, false
		}
		v = v[n:]
	}
	switch {
	case len(v) == 0:
		return micros, false, true
	case len(v) == 1 && v[0] == 'Z':
		return micros, true, true
	case len(v) == 6 && (v[0] == '+' || v[0] == '-') && v[3] == ':':
		hour, minute := two(v[1:]), two(v[4:])
		offset := (int64(hour)*60 + int64(minute)) * 60e6
		if v[0] == '+' {
			offset = -offset
		}
		return micros + offset, true, hour < 15 && minute < 60
	}
	return 0, false, false
}

// two reads two digits; more than 99 if they are none.
func two(v []byte) uint {
	a, b := uint(v[0]-'0'), uint(v[1]-'0')
	if a > 9 || b > 9 {
		return 100
	}
	return a*10 + b
}

var daysBefore = [...]int32{0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365}

// parseDate reads 2006-01-02, from the year 1 on, as days since 2000-01-01.
func parseDate(v []byte) (days int32, ok bool) {
	if v[4] != '-' || v[7] != '-' {
		return 0, false
	}
	century, year, month, day := two(v), two(v[2:]), two(v[5:]), two(v[8:])
	if century > 99 || year > 99 || month < 1 || month > 12 || day < 1 {
		return 0, false
	}
	y := int32(century*100 + year)
	leap := y%4 == 0 && (y%100 != 0 || y%400 == 0)
	last := daysBefore[month] - daysBefore[month-1]
	days = daysBefore[month-1] + int32(day) - 1
	if leap {
		if month == 2 {
			last++
		} else if month > 2 {
			days++
		}
	}
	if y == 0 || int32(day) > last {
		return 0, false
	}
	y--
	return days + y*365 + y/4 - y/100 + y/400 - daysTo2000, true
}

func appendUUID(dst, v []byte) ([]byte, bool) {
	if len(v) != 36 || v[8] != '-' || v[13] != '-' || v[18] != '-' || v[23] != '-' {
		return dst, false
	}
	dst = append(dst, 0, 0, 0, 16)
	for i := 0; i < 36; {
		if v[i] == '-' {
			i++
			continue
		}
		high, low := hexDigit(v[i]), hexDigit(v[i+1])
		if high > 15 || low > 15 {
			return dst, false
		}
		dst = append(dst, high<<4|low)
		i += 2
	}
	return dst, true
}

func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 0xff
}

// wholeRows writes payloads as they are into one column, in COPY's binary form.
type wholeRows struct{ codec codec }

func (e wholeRows) append(dst []byte, b *message.Batch, i int) ([]byte, rowKind, error) {
	payload := b.Payload(i)
	if e.codec != codecBytea {
		if err := checkText(payload); err != nil {
			return dst, 0, fmt.Errorf("payload %w", err)
		}
	}
	dst, _ = e.codec.append(append(dst, 0, 1), payload)
	return dst, 0, nil
}

// wholeCodec is how the whole payload goes into a column of a type; codecNone: as text.
func wholeCodec(t columnType) codec {
	switch c := codecs[t.oid]; c {
	case codecBytea, codecText, codecJSONB:
		return c
	}
	return codecNone
}

// appendBinary appends the row whose fields were found in payload, in the binary
// form. On an error or without ok dst is returned as it was.
func (e *objects) appendBinary(dst, payload []byte) (out []byte, ok bool, err error) {
	start, x := len(dst), e.target
	dst = append(dst, 0, 0) // the number of fields
	count, next := uint16(0), 0
	for c := range x.columns {
		f := e.found[c]
		if next < len(x.defaults) && x.defaults[next] == c {
			next++
			if f.to == 0 {
				continue
			}
		}
		count++
		raw := payload[f.from:f.to]
		if c == x.extra {
			raw = e.rest
		}
		if len(raw) == 0 || raw[0] == 'n' {
			dst = append(dst, binaryNull...)
			continue
		}
		if raw[0] == '"' {
			raw = raw[1 : len(raw)-1]
			if bytes.IndexByte(raw, '\\') >= 0 {
				e.text = appendUnescaped(e.text[:0], raw)
				raw = e.text
				if x.codecs[c] != codecBytea && bytes.IndexByte(raw, 0) >= 0 {
					return dst[:start], false, x.refuse(c, errNUL)
				}
			}
		}
		if dst, ok = x.codecs[c].append(dst, raw); !ok {
			return dst[:start], false, nil
		}
	}
	binary.BigEndian.PutUint16(dst[start:], count)
	return dst, true, nil
}
