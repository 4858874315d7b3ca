package jsontext

// MaxDepth is how deep arrays and objects may nest, as in encoding/json.
const MaxDepth = 10000

// Problem says why a value is not valid JSON; zero means that it is valid.
type Problem uint8

const (
	OK Problem = iota
	UnexpectedEnd
	UnexpectedByte
	ControlInString
	BadEscape
	BadNumber
	NotUTF8
	TooDeep
	TrailingBytes
)

func (p Problem) String() string {
	return [...]string{
		"valid", "the value ends too early", "unexpected character", "control character inside a string",
		"invalid escape", "invalid number", "not UTF-8", "nested too deep", "more than one value",
	}[p]
}

// Check looks whether b is exactly one JSON value, with white space around it
// allowed, and otherwise where it stops being one. Unlike encoding/json it
// refuses strings that are not UTF-8, since they are no JSON to anybody else.
// It allocates only beyond 64 levels of nesting.
func Check(b []byte) (at int, p Problem) {
	c := checker{b: b}
	if p = c.value(); p != OK {
		return c.i, p
	}
	if c.space(); c.i != len(b) {
		return c.i, TrailingBytes
	}
	return c.i, OK
}

// Valid reports whether Check finds no problem.
func Valid(b []byte) bool {
	_, p := Check(b)
	return p == OK
}

// checker walks a value without recursion: a record of 16 MiB may consist of
// opening brackets, and that must cost an error, not the process.
type checker struct {
	b []byte
	i int
	// The open brackets: a bit each, set for an object, the innermost lowest.
	// Levels that fall out of the word go to outer, 64 at a time.
	open  uint64
	depth int
	outer []uint64
}

func (c *checker) push(object uint64) bool {
	if c.depth == MaxDepth {
		return false
	}
	if c.depth > 0 && c.depth&63 == 0 {
		c.outer = append(c.outer, c.open)
	}
	c.open = c.open<<1 | object
	c.depth++
	return true
}

func (c *checker) pop() {
	c.open >>= 1
	c.depth--
	if n := len(c.outer); n > 0 && c.depth&63 == 0 {
		c.open = c.outer[n-1]
		c.outer = c.outer[:n-1]
	}
}

func (c *checker) space() {
	for c.i < len(c.b) && isSpace(c.b[c.i]) {
		c.i++
	}
}

func isSpace(x byte) bool { return x == ' ' || x == '\t' || x == '\r' || x == '\n' }

func (c *checker) value() Problem {
	for {
		// A value begins here.
		c.space()
		if c.i >= len(c.b) {
			return UnexpectedEnd
		}
		var p Problem
		switch x := c.b[c.i]; {
		case x == '"':
			p = c.str()
		case x == '{':
			c.i++
			if c.space(); c.i < len(c.b) && c.b[c.i] == '}' {
				c.i++
				break
			}
			if !c.push(1) {
				return TooDeep
			}
			if p = c.key(); p == OK {
				continue
			}
		case x == '[':
			c.i++
			if c.space(); c.i < len(c.b) && c.b[c.i] == ']' {
				c.i++
				break
			}
			if !c.push(0) {
				return TooDeep
			}
			continue
		case x == 't':
			p = c.word("true")
		case x == 'f':
			p = c.word("false")
		case x == 'n':
			p = c.word("null")
		case x == '-' || x-'0' <= 9:
			p = c.number()
		default:
			return UnexpectedByte
		}
		if p != OK {
			return p
		}
		// A value ended here: close what it closes, up to the next comma.
		more := false
		for !more {
			if c.depth == 0 {
				return OK
			}
			if c.space(); c.i >= len(c.b) {
				return UnexpectedEnd
			}
			object := c.open&1 != 0
			switch x := c.b[c.i]; {
			case object && x == '}', !object && x == ']':
				c.i++
				c.pop()
			case x == ',':
				c.i++
				if object {
					if p := c.key(); p != OK {
						return p
					}
				}
				more = true
			default:
				return UnexpectedByte
			}
		}
	}
}

// key reads `"name" :`.
func (c *checker) key() Problem {
	if c.space(); c.i >= len(c.b) {
		return UnexpectedEnd
	}
	if c.b[c.i] != '"' {
		return UnexpectedByte
	}
	if p := c.str(); p != OK {
		return p
	}
	if c.space(); c.i >= len(c.b) {
		return UnexpectedEnd
	}
	if c.b[c.i] != ':' {
		return UnexpectedByte
	}
	c.i++
	return OK
}

func (c *checker) str() (p Problem) {
	c.i, p = SkipString(c.b, c.i)
	return p
}

// escapeLen is the length of the escape that b begins with, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, x := range b[2:6] {
			if !(x-'0' <= 9 || x-'a' <= 5 || x-'A' <= 5) {
				return 0
			}
		}
		return 6
	}
	return 0
}

func (c *checker) word(w string) Problem {
	if len(c.b)-c.i < len(w) || string(c.b[c.i:c.i+len(w)]) != w {
		return UnexpectedByte
	}
	c.i += len(w)
	return OK
}

func (c *checker) number() Problem {
	b, i := c.b, c.i
	digits := func() bool {
		from := i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		return i > from
	}
	ok := true
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else {
		ok = digits()
	}
	if ok && i < len(b) && b[i] == '.' {
		i++
		ok = digits()
	}
	if ok && i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		ok = digits()
	}
	c.i = i
	if !ok {
		return BadNumber
	}
	return OK
}
