package jsontext

import (
	"encoding/json"
	"testing"
)

func FuzzUnescapingAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range append(samples, `"\ud83d\ude00 \ud83d \ude00\u00e9 \ud83d\n\"\\\/\b\f\r\t"`, `"12345678\u0041 9"`) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 0 && b[0] == '"' {
			end, p := SkipString(b, 0)
			got, at, q := AppendContent([]byte("#"), b, 0)
			if at != end || q != p || p == OK && string(got) != "#"+string(AppendUnescaped(nil, b[1:end-1])) {
				t.Fatalf("AppendContent(%q) = %q %d %v, SkipString says %d %v", b, got, at, q, end, p)
			}
		}
		if !Valid(b) {
			return
		}
		i := SkipSpace(b, 0)
		end, p := Skip(b, i)
		if p != OK || SkipSpace(b, end) != len(b) {
			t.Fatalf("Skip(%q, %d) = %d %v", b, i, end, p)
		}
		if b[i] != '"' {
			if number := b[i] == '-' || b[i] >= '0' && b[i] <= '9'; IsNumber(b[i:end]) != number {
				t.Fatalf("IsNumber(%q)", b[i:end])
			}
			return
		}
		if again, p := SkipString(b, i); again != end || p != OK {
			t.Fatalf("SkipString(%q, %d) = %d %v, Skip says %d", b, i, again, p, end)
		}
		var want string
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		if got := string(AppendUnescaped(nil, b[i+1:end-1])); got != want {
			t.Fatalf("%q: got %q, encoding/json reads %q", b, got, want)
		}
	})
}
