package file

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// directory is the place that a file:// URL names. mq-bridge keeps all positions
// in one file.json, which is left alone: the records go into file.json.d beside it.
func directory(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "file" {
		return "", errors.New("checkpoint store: not a file:// URL")
	}
	path := filepath.Clean(u.Path)
	if u.Host != "" || !filepath.IsAbs(path) || path == "/" {
		return "", fmt.Errorf("checkpoint store %s: the path of the directory must be absolute: file:///var/lib/mqb/checkpoints", u.Redacted())
	}
	if strings.HasSuffix(path, ".json") {
		path += ".d"
	}
	return path, nil
}

// A key is escaped to bytes that every file system keeps apart, also one that
// ignores case, and cut into names that are not too long for it; '+' says that a
// name goes on in the next directory.
const (
	chunkBytes = 200
	goesOn     = "+"
)

// path is the directory of a record.
func (s *Store) path(key string) string {
	name := escape(key)
	path := s.root
	for len(name) > chunkBytes {
		path = filepath.Join(path, name[:chunkBytes]+goesOn)
		name = name[chunkBytes:]
	}
	return filepath.Join(path, name)
}

func escape(key string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	for i := range len(key) {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// unescape is false for a name that escape does not make: somebody else's file.
func unescape(name string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '%' {
			if i+3 > len(name) {
				return "", false
			}
			v, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c = byte(v)
			i += 2
		}
		b.WriteByte(c)
	}
	key := b.String()
	return key, escape(key) == name
}

// walkKeys calls visit for the directory of each record below root, in no
// particular order.
func walkKeys(root string, visit func(key, dir string) error) error {
	var walk func(dir, before string) error
	walk = func(dir, before string) error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			at := filepath.Join(dir, e.Name())
			if part, more := strings.CutSuffix(e.Name(), goesOn); more {
				err = walk(at, before+part)
			} else if key, ok := unescape(before + e.Name()); ok {
				err = visit(key, at)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return walk(root, "")
}
