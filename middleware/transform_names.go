package middleware

import "github.com/mqbridge/mqb/jsontext"

// names finds the names of an object's members in a table. Records of one source
// look alike, so it compares each name with the one that stood in the same place
// in the record before; that is much faster than reading it and looking it up.
// Not safe for concurrent use.
type names struct {
	byName  map[string]int
	last    []lastName
	scratch []byte
}

// lastName is a name as it stood in the text, with its quotes and the colon.
type lastName struct {
	text []byte
	at   int // -1: not in the table
}

// maxNames and maxName bound what is remembered of a record.
const maxNames, maxName = 256, 256

// read reads the name at src[i], member n of its object, and the colon. at is -1
// where the table does not have it.
func (s *names) read(src []byte, i, n int) (at, behind int, p jsontext.Problem) {
	if n < len(s.last) {
		if l := &s.last[n]; len(src)-i > len(l.text) && string(src[i:i+len(l.text)]) == string(l.text) {
			return l.at, i + len(l.text), jsontext.OK
		}
	}
	if i == len(src) {
		return 0, i, jsontext.UnexpectedEnd
	}
	if src[i] != '"' {
		return 0, i, jsontext.UnexpectedByte
	}
	end, p := jsontext.SkipString(src, i)
	if p != jsontext.OK {
		return 0, end, p
	}
	if behind = jsontext.SkipSpace(src, end); behind == len(src) {
		return 0, behind, jsontext.UnexpectedEnd
	} else if src[behind] != ':' {
		return 0, behind, jsontext.UnexpectedByte
	}
	behind++
	s.scratch = jsontext.AppendUnescaped(s.scratch[:0], src[i+1:end-1])
	at, ok := s.byName[string(s.scratch)]
	if !ok {
		at = -1
	}
	if n == len(s.last) && n < maxNames {
		s.last = append(s.last, lastName{})
	}
	if n < len(s.last) && behind-i <= maxName {
		s.last[n].text, s.last[n].at = append(s.last[n].text[:0], src[i:behind]...), at
	}
	return at, behind, jsontext.OK
}

// at is the name at src[i], which read has checked.
func (*names) at(src []byte, i int) string {
	end, _ := jsontext.SkipString(src, i)
	return string(jsontext.AppendUnescaped(nil, src[i+1:end-1]))
}

// skip is jsontext.Skip with a short way for strings, which most values are.
func skip(src []byte, i int) (end int, p jsontext.Problem) {
	if i < len(src) && src[i] == '"' {
		return jsontext.SkipString(src, i)
	}
	return jsontext.Skip(src, i)
}

// span is a piece of a text; end 0 is none.
type span struct{ start, end int }

// members checks src, which must be one object, and notes in found where the
// values of the members stand that the table has; of several the first.
func (s *names) members(src []byte, found []span) error {
	clear(found)
	i := jsontext.SkipSpace(src, 0)
	if i == len(src) || src[i] != '{' {
		return notAnObject(src)
	}
	i = jsontext.SkipSpace(src, i+1)
	if i < len(src) && src[i] == '}' {
		i++
	} else {
		for n := 0; ; n++ {
			at, value, p := s.read(src, i, n)
			if p != jsontext.OK {
				return notJSON(p)
			}
			value = jsontext.SkipSpace(src, value)
			if i, p = skip(src, value); p != jsontext.OK {
				return notJSON(p)
			}
			if at >= 0 && found[at].end == 0 {
				found[at] = span{value, i}
			}
			if i = jsontext.SkipSpace(src, i); i == len(src) {
				return notJSON(jsontext.UnexpectedEnd)
			}
			if src[i] == '}' {
				i++
				break
			}
			if src[i] != ',' {
				return notJSON(jsontext.UnexpectedByte)
			}
			i = jsontext.SkipSpace(src, i+1)
		}
	}
	if jsontext.SkipSpace(src, i) != len(src) {
		return notJSON(jsontext.TrailingBytes)
	}
	return nil
}

// notAnObject is the error of a payload that is something else.
func notAnObject(src []byte) error {
	if _, p := jsontext.Check(src); p != jsontext.OK {
		return notJSON(p)
	}
	return &fieldError{msg: "is " + shape(src[jsontext.SkipSpace(src, 0):]) + ", not an object"}
}
