package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/mattn/go-isatty"
	"github.com/mqbridge/mqb/cluster/api"
)

func checkFormat(f string) error {
	switch f {
	case "table", "json", "yaml":
		return nil
	}
	return fmt.Errorf("output format %q: use table, json or yaml", f)
}

// print writes v as -o asks; table draws the form for people.
func (c *cli) print(v any, table func(io.Writer)) error {
	switch c.format {
	case "json":
		enc := json.NewEncoder(c.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case "yaml":
		text, err := asYAML(v)
		if err != nil {
			return err
		}
		_, err = c.out.Write(text)
		return err
	}
	table(c.out)
	return nil
}

// asYAML goes through JSON, so that both forms have the same keys.
func asYAML(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(b)
}

// columns writes rows under a header, aligned.
func columns(w io.Writer, header string, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.ReplaceAll(header, " ", "\t"))
	for _, r := range rows {
		for i, cell := range r {
			r[i] = clean(cell)
		}
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	_ = tw.Flush()
}

// clean keeps names that others chose from moving the cursor; an empty cell is
// shown as "-".
func clean(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// age is how long ago t was, in one or two units.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := max(now.Sub(t), 0).Truncate(time.Second)
	switch {
	case d < time.Hour:
		return d.String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

func number(n int64) string {
	if n < 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// size writes bytes with three digits or so.
func size(n int64) string {
	v, unit := float64(n), 0
	for v >= 1024 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[unit-1])
}

// watchInterval is how often a watch asks. Asking again and again survives the
// death of leaders and nodes without any state in the server.
const watchInterval = time.Second

// show prints what fetch returns, once, or with watch again and again whenever
// it changed, until ctx ends. A watch outlives an unreachable node.
func show[T any](ctx context.Context, c *cli, watch bool, fetch func(context.Context) (T, error), table func(io.Writer, T)) error {
	if !watch {
		v, err := fetch(ctx)
		if err != nil {
			return err
		}
		return c.print(v, func(w io.Writer) { table(w, v) })
	}
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	screen := c.format == "table" && isTerminal(c.out)
	var last []byte
	for {
		v, err := fetch(ctx)
		if ctx.Err() != nil {
			return nil // interrupted: that is how a watch ends
		}
		if err != nil && api.AsError(err).Code != api.CodeUnreachable {
			return err
		}
		now, encodeErr := json.Marshal(v)
		if encodeErr != nil {
			return encodeErr
		}
		if err != nil {
			now = []byte(api.AsError(err).Message)
		}
		if screen || !bytes.Equal(now, last) {
			if screen {
				fmt.Fprint(c.out, clearScreen)
			}
			switch {
			case err != nil:
				fmt.Fprintf(c.err, "mqbctl: %s\n", now)
			case c.format == "json":
				fmt.Fprintf(c.out, "%s\n", now)
			case c.format == "yaml":
				fmt.Fprintln(c.out, "---")
				fallthrough
			default:
				if err := c.print(v, func(w io.Writer) { table(w, v) }); err != nil {
					return err
				}
				if c.format == "table" && !screen {
					fmt.Fprintln(c.out)
				}
			}
		}
		last = now
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// clearScreen moves to the top left and clears what is there.
const clearScreen = "\x1b[H\x1b[2J"

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
