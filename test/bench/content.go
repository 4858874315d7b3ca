package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// content says what a sink holds, whatever the order of its records: sums of
// hashes of the lines as they stand, and of the lines as JSON (names sorted,
// numbers as they compare), with one of them as an example.
type content struct {
	lines, values xxh3.Uint128
	example       string
}

func add(a, b xxh3.Uint128) xxh3.Uint128 {
	return xxh3.Uint128{Hi: a.Hi + b.Hi, Lo: a.Lo + b.Lo}
}

type lines func(ctx context.Context, yield func(line []byte)) error

func contentOf(ctx context.Context, read lines) (content, error) {
	c, err := linesOf(ctx, read)
	if err == nil {
		c.values, err = valuesOf(ctx, read)
	}
	return c, err
}

func linesOf(ctx context.Context, read lines) (c content, err error) {
	err = read(ctx, func(line []byte) {
		c.lines = add(c.lines, xxh3.Hash128(line))
		if c.example == "" {
			c.example = string(line)
		}
	})
	return c, err
}

func valuesOf(ctx context.Context, read lines) (sum xxh3.Uint128, err error) {
	var bad error
	err = read(ctx, func(line []byte) {
		var v any
		err := json.Unmarshal(line, &v)
		if err == nil {
			line, err = json.Marshal(v)
		}
		if err != nil {
			bad = fmt.Errorf("%q: %w", line[:min(len(line), 200)], err)
		}
		sum = add(sum, xxh3.Hash128(line))
	})
	return sum, errors.Join(err, bad)
}

// compare says whether a sink holds the same. Decoding takes long: it is done only
// where the bytes differ.
func (c content) compare(ctx context.Context, read lines) error {
	got, err := linesOf(ctx, read)
	if err != nil || got.lines == c.lines {
		return err
	}
	values, err := valuesOf(ctx, read)
	if err == nil && values != c.values {
		err = fmt.Errorf("its output is not that of mqb; a record of each:\n%s\n%s", got.example, c.example)
	}
	return err
}
