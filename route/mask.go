package route

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Mask stands wherever a secret was.
const Mask = "***"

// Patterns instead of net/url: lists of hosts and passwords with reserved
// characters are no valid URLs and must be masked all the same. In a text, a
// password ends at a space; in a value that is a URL from its beginning it does
// not.
var (
	wholeURL   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:(//|\?)`)
	userOfText = regexp.MustCompile(`(://[^/?#\s:@]*):(\S*)@`)
	userOfURL  = regexp.MustCompile(`(?s)(://[^/?#:@]*):(.*)@`)
	keyOfText  = regexp.MustCompile(`([?&;])([^=&;#\s?]*)=([^&;#\s]*)`)
	keyOfURL   = regexp.MustCompile(`([?&;])([^=&;#?]*)=([^&;#]*)`)
	dsnSecret  = regexp.MustCompile(`(?i)\b((?:ssl)?pass(?:word|wd)?|pwd)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s'&;]\S*)`)
)

// MaskURL replaces the passwords of URLs and connection strings, and query
// parameters that look like secrets, by ***. Other text stays as it is. Where it is
// not clear what belongs to a password, more is masked and not less.
func MaskURL(s string) string {
	user, key := userOfText, keyOfText
	if wholeURL.MatchString(s) {
		user, key = userOfURL, keyOfURL
	}
	if strings.Contains(s, "://") {
		s = replaceGroups(user, s, func(g []string) string {
			if beginsWithPort(g[2]) {
				// A port: what has the @ stands behind it, maybe with a URL in it.
				at := strings.IndexAny(g[2], ",/?#")
				return g[1] + ":" + g[2][:at] + MaskURL(g[2][at:]+"@")
			}
			return g[1] + ":" + Mask + "@"
		})
	}
	if strings.ContainsAny(s, "?&;") {
		s = replaceGroups(key, s, func(g []string) string {
			name, err := url.QueryUnescape(g[2])
			if err != nil {
				name = g[2]
			}
			if secretParameter(name) {
				return g[1] + g[2] + "=" + Mask
			}
			return g[0]
		})
	}
	return dsnSecret.ReplaceAllString(s, "${1}${2}"+Mask)
}

// replaceGroups is ReplaceAllStringFunc with the groups of each match.
func replaceGroups(re *regexp.Regexp, s string, replace func(groups []string) string) string {
	var b strings.Builder
	end := 0
	for _, m := range re.FindAllStringSubmatchIndex(s, -1) {
		groups := make([]string, len(m)/2)
		for i := range groups {
			groups[i] = s[m[2*i]:m[2*i+1]]
		}
		b.WriteString(s[end:m[0]])
		b.WriteString(replace(groups))
		end = m[1]
	}
	b.WriteString(s[end:])
	return b.String()
}

// beginsWithPort reports whether what stands behind a host's colon is a port with
// more behind it. Digits with nothing but the @ behind them are a password.
func beginsWithPort(s string) bool {
	at := strings.IndexAny(s, ",/?#")
	if at < 0 {
		return false
	}
	n, err := strconv.ParseUint(s[:at], 10, 16)
	return err == nil && n > 0
}

// secretParameter reports whether a query parameter is likely to hold a secret.
func secretParameter(name string) bool {
	name = strings.ToLower(name)
	for _, s := range []string{"pass", "pwd", "secret", "token", "key", "signature", "credential", "authorization"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return name == "sig"
}

// secretName reports whether a key that users choose the name of is likely to
// hold a secret: sasl.password, X-Api-Key, Authorization.
func secretName(key string) bool {
	key = strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "").Replace(key))
	for _, s := range []string{"password", "passwd", "passphrase", "secret", "token", "apikey", "authorization", "credential", "privatekey", "accesskey", "cookie"} {
		if strings.Contains(key, s) {
			return true
		}
	}
	return false
}
