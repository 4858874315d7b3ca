package route

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// LookupEnv finds a variable, like os.LookupEnv.
type LookupEnv func(name string) (value string, ok bool)

// interpolate replaces ${VAR} and ${VAR:-default} while a file is loaded. What
// the message templates own stays as it is: ${payload:…} and the other
// namespaces, and the escape $${…}. As in a shell, a default also stands for a
// variable that is empty, and may itself hold variables. used reports whether
// anything was replaced.
func interpolate(s string, env LookupEnv) (out string, used bool, err error) {
	if env == nil || !strings.Contains(s, "${") {
		return s, false, nil
	}
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), used, nil
		}
		if i > 0 && s[i-1] == '$' {
			// $${…}: an escape of the templates, kept with all that it encloses.
			n := i + 2
			if end := closing(s[n:]); end >= 0 {
				n += end + 1
			}
			b.WriteString(s[:n])
			s = s[n:]
			continue
		}
		b.WriteString(s[:i])
		s = s[i:]
		name, rest := variable(s[2:])
		fallback, hasDefault := strings.CutPrefix(rest, ":-")
		if name == "" || isNamespace(name) || !(hasDefault || strings.HasPrefix(rest, "}")) {
			b.WriteString("${")
			s = s[2:]
			continue
		}
		end := closing(rest)
		if end < 0 {
			return "", used, fmt.Errorf("${%s:- is never closed", name)
		}
		s = rest[end+1:]
		used = true
		value, ok := env(name)
		switch {
		case hasDefault && value == "":
			value, _, err = interpolate(fallback[:end-2], env)
			if err != nil {
				return "", used, err
			}
		case !ok:
			return "", used, fmt.Errorf("variable %s is not set and has no default", name)
		}
		if !utf8.ValidString(value) {
			// It would come out as another text on its way to the nodes.
			return "", used, fmt.Errorf("variable %s %w", name, errNotUTF8)
		}
		b.WriteString(value)
	}
}

var errNotUTF8 = errors.New("is not UTF-8")

// interpolationHint says what to do about an error of interpolate.
func interpolationHint(err error) string {
	if errors.Is(err, errNotUTF8) {
		return ""
	}
	return "set it, or write ${NAME:-default}"
}

// variable splits the name of an environment variable off the front of s.
func variable(s string) (name, rest string) {
	i := 0
	for i < len(s) && (s[i] == '_' || s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z' || i > 0 && s[i] >= '0' && s[i] <= '9') {
		i++
	}
	return s[:i], s[i:]
}

// closing is the index of the brace that closes the one before s, -1 if none does.
func closing(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth == 0 {
				return i
			}
			depth--
		}
	}
	return -1
}

func isNamespace(s string) bool {
	switch s {
	case "payload", "metadata", "message", "gen", "env", "partition":
		return true
	}
	return false
}
