package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// files is a job that writes a file.
func (w *work) files(name string, t task) (job, error) {
	t.rows, t.parts = w.rows, w.path("out")
	t.out = filepath.Join(w.path("out"), "orders.jsonl")
	if t.packs() {
		t.out += ".zst"
	}
	j, err := w.job(name, t)
	j.before, j.count, j.lines = w.clean, w.countLines, w.readLines
	return j, err
}

// outputs are the files that a run wrote.
func (w *work) outputs() ([]string, error) {
	one, err1 := filepath.Glob(filepath.Join(w.path("out"), "orders.*"))
	parts, err2 := filepath.Glob(filepath.Join(w.path("out"), "part-*"))
	return append(one, parts...), errors.Join(err1, err2)
}

// open returns a file's content, decompressed by zstd's own program.
func open(ctx context.Context, path string) (io.Reader, func() error, error) {
	if !strings.HasSuffix(path, ".zst") {
		f, err := os.Open(path)
		return f, func() error { return f.Close() }, err
	}
	cmd := exec.CommandContext(ctx, "zstd", "-dcq", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return out, cmd.Wait, cmd.Start()
}

// countLines counts the lines that a run wrote. It reads in small pieces: the peak
// memory that the kernel reports for a child begins with its parent's.
func (w *work) countLines(ctx context.Context) (n int, err error) {
	buf := make([]byte, 256<<10)
	err = w.eachOutput(ctx, func(r io.Reader) error {
		for {
			k, err := r.Read(buf)
			n += bytes.Count(buf[:k], []byte{'\n'})
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	return n, err
}

func (w *work) readLines(ctx context.Context, yield func([]byte)) error {
	return w.eachOutput(ctx, func(r io.Reader) error {
		s := bufio.NewScanner(r)
		s.Buffer(make([]byte, 256<<10), 16<<20)
		for s.Scan() {
			yield(s.Bytes())
		}
		return s.Err()
	})
}

func (w *work) eachOutput(ctx context.Context, do func(io.Reader) error) error {
	paths, err := w.outputs()
	if err != nil {
		return err
	}
	for _, p := range paths {
		r, end, err := open(ctx, p)
		if err != nil {
			return err
		}
		if err := errors.Join(do(r), end()); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// compressed returns a file beside path, written by zstd's own program.
func compressed(ctx context.Context, path string) (string, error) {
	out := path + ".zst"
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	if msg, err := exec.CommandContext(ctx, "zstd", "-q", "-3", path, "-o", out).CombinedOutput(); err != nil {
		return "", fmt.Errorf("zstd (Debian: zstd): %w\n%s", err, msg)
	}
	return out, nil
}

var fileJobs = map[kind]string{
	csvToJSONL: "CSV → JSONL, strings kept", csvToTyped: "CSV → JSONL, id integer, attributes decoded",
	jsonlToJSONL: "JSONL → JSONL, bytes passed through", csvToZstd: "CSV → JSONL, zstd", jsonlToZstd: "JSONL → JSONL, zstd",
	csvZstdToJSONL: "CSV, zstd → JSONL", jsonlZstdToJSONL: "JSONL, zstd → JSONL",
}

func (w *work) file(k kind) func(context.Context) (job, error) {
	return func(ctx context.Context) (job, error) {
		csv, jsonl, err := fixture(w.dir, w.rows)
		if err != nil {
			return job{}, err
		}
		t := task{kind: k, in: csv}
		if slices.Contains([]kind{jsonlToJSONL, jsonlToZstd, jsonlZstdToJSONL}, k) {
			t.in = jsonl
		}
		if k == csvZstdToJSONL || k == jsonlZstdToJSONL {
			if t.in, err = compressed(ctx, t.in); err != nil {
				return job{}, err
			}
		}
		return w.files(w.title(fileJobs[k]), t)
	}
}
