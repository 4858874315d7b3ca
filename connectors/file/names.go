package file

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

const (
	partStem     = "part-"
	spoolStem    = ".spool-"
	manifestStem = "_mqb-manifest"
)

// partName names the part of the records [first, last], both included, so that
// the order of names is the order of records.
func partName(prefix string, first, last int64, ext string) string {
	return prefix + message.SortKey(first) + "-" + message.SortKey(last) + "." + ext
}

// partKey is "<source>-<number>", the part of a name that says which partition
// the records came from.
func partKey(p connectors.Partition) string {
	return fmt.Sprintf("%s-%010d", strings.ReplaceAll(p.PartSource, "/", "%2F"), p.PartNumber)
}

// parsePart takes a part's name apart.
func parsePart(name string) (key string, r connectors.Range, ok bool) {
	rest, ok := strings.CutPrefix(name, partStem)
	if !ok {
		return "", r, false
	}
	const tail = len("-") + message.SortKeyDigits + len("-") + message.SortKeyDigits
	// The extension follows the last digit: it may have several dots (jsonl.gz),
	// and so may the source.
	for dot := len(rest); dot > tail; {
		dot = strings.LastIndexByte(rest[:dot], '.')
		if dot <= tail {
			break
		}
		nums := rest[dot-tail : dot]
		first, err1 := strconv.ParseInt(nums[1:1+message.SortKeyDigits], 10, 64)
		last, err2 := strconv.ParseInt(nums[tail-message.SortKeyDigits:], 10, 64)
		if err1 == nil && err2 == nil && nums[0] == '-' && nums[1+message.SortKeyDigits] == '-' {
			return rest[:dot-tail], connectors.Range{First: first, Last: last}, true
		}
	}
	return "", r, false
}

// spoolName names an unfinished part. It begins with a dot, so that no reader of
// the directory takes it for one.
func spoolName(key string, epoch uint64, run string, n int) string {
	return fmt.Sprintf("%s%s-%020d-%s-%d", spoolStem, key, epoch, strings.ReplaceAll(run, "/", "_"), n)
}

// spoolEpoch tells whether a name is a spool of the partition, and of which epoch.
func spoolEpoch(name, key string) (epoch uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, spoolStem+key+"-")
	if !ok || len(rest) < 20 {
		return 0, false
	}
	epoch, err := strconv.ParseUint(rest[:20], 10, 64)
	return epoch, err == nil
}
