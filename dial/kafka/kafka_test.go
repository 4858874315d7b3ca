package kafka

import (
	"slices"
	"strings"
	"testing"
)

func TestBrokers(t *testing.T) {
	for _, c := range []struct {
		url  string
		want []string
	}{
		{"localhost", []string{"localhost:9092"}},
		{"a:1, b:2,", []string{"a:1", "b:2"}},
		{"kafka://a:1/", []string{"a:1"}},
		{"[::1]:7,[::1]", []string{"[::1]:7", "[::1]:9092"}},
		{"", nil},
		{"http://a:1", nil},
		{"a:1/topic", nil},
		{"a:b:c", nil},
	} {
		got, err := Config{URL: c.url}.Brokers()
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%q: %q, %v, want %q", c.url, got, err, c.want)
		}
	}
}

func TestPasswordInURLIsNotQuoted(t *testing.T) {
	_, err := Config{URL: "user:hunter2@a:1"}.Brokers()
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("%v", err)
	}
}
