package route_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/route"
)

// Each of these has been seen in somebody's log.
func TestSecretsOfURLsAreMaskedHoweverTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"postgres://u:geheim@h/d", "postgres://u:12345geheim@h/d", "postgres://:geheim@h", "postgres://u:ge heim geheim@h/d", "postgres://u:a@b:geheim@h/d",
		"postgres://u:a/geheim@h/d", "postgres://u:#geheim@h", "postgres://u:%67eheim?geheim@h/d", "postgres://h/d?user=u&password=geheim", "postgres://h/d?%70assword=geheim",
		"https://h/?sig=geheim", "https://h/?X-Amz-Signature=geheim&x=1", "https://h/?sslpassword=ge geheim", "https://h/?access_token=geheim#x",
		"kafka:?url=h:1&password=geheim", "sqlx:?url=postgres://u:geheim@h/d", "a.csv?password=geheim", "host=h password=geheim", "host=h password = 'a geheim' x=y", "Server=h;Pwd=geheim;x=y",
		"cannot reach postgres://u:geheim@h/d nor mysql://v:geheim@h", "dial http://h:80/?next=amqp://u:geheim@x", "mongodb://u:geheim@a:1,b:2/db?authSource=x",
		"redis://:geheim@h:6379/0", "postgres://u:\x01geheim@h", "postgres://u:ge\ngeheim@h/d",
	} {
		if got := route.MaskURL(s); strings.Contains(got, "geheim") || !strings.Contains(got, route.Mask) {
			t.Errorf("%q: %q", s, got)
		}
	}
	// A password of digits is none the less one; nothing behind it makes it a port.
	if got := route.MaskURL("postgres://u:1234@h/d"); got != "postgres://u:***@h/d" {
		t.Error(got)
	}
	for _, s := range []string{
		"http://h:80/p?email=a@b", "kafka:9092", "h1:9092,h2:9092", "postgres://h:5432/d?sslmode=require", "data/*.csv", "a == \"b\" && c > 1",
	} {
		if got := route.MaskURL(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

// A secret never shows, whatever stands around it.
func FuzzMaskURL(f *testing.F) {
	for _, s := range [][2]string{{"", ""}, {"a@", ":b"}, {"1/", ""}, {"#?", "&"}, {" ", "\n"}, {"%", "%4"}, {"99999/", "@"}, {"'", "\\"}, {"://", "://x:y@"}} {
		f.Add("u", s[0], s[1])
	}
	const secret = "geheim"
	f.Fuzz(func(t *testing.T, user, before, after string) {
		if strings.ContainsAny(user, "/?#:@") || strings.Contains(user, secret) {
			return // no user of a URL
		}
		if i := strings.IndexAny(before, ",/?#"); i > 0 && strings.Trim(before[:i], "0123456789") == "" {
			return // reads as a port
		}
		for _, s := range []string{
			"postgres://" + user + ":" + before + secret + after + "@h/d",
			"postgres://h/d?x=" + url.QueryEscape(user) + "&password=" + url.QueryEscape(before+secret+after) + "&y=z",
		} {
			if got := route.MaskURL(s); strings.Contains(got, secret) {
				t.Errorf("%q: %q", s, got)
			}
		}
		_ = route.MaskURL(before + after) // must not panic
	})
}
