package file

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

func there(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func deleting(t *testing.T, content string) (*rig, *reader, message.Position) {
	t.Helper()
	r := newRig(t, Config{Format: "raw", Delete: true}, content)
	rd := r.mustOpen(message.Position{})
	_, at, err := drain(t, rd)
	if !errors.Is(err, connectors.ErrEndOfInput) {
		t.Fatal(err)
	}
	return r, rd, at
}

func TestFileIsDeletedOnlyWhenAllOfItIsDurable(t *testing.T) {
	t.Parallel()
	r, rd, at := deleting(t, "a\nb\nc\n")
	for _, p := range []message.Position{place{Offset: 2, Record: 1}.position(), place{Offset: 4, Record: 2}.position()} {
		if err := rd.Settle(t.Context(), p); err != nil || !there(t, r.path) {
			t.Fatalf("settled at %q: deleted (%v) (invariant 2)", p.Token, err)
		}
	}
	if err := rd.Settle(t.Context(), at); err != nil || there(t, r.path) {
		t.Fatalf("settled at the end: still there (%v)", err)
	}
	// The next run finds it gone and has nothing to do.
	if _, err := r.open(at); err == nil || err.Error() == "" {
		t.Fatal("a deleted file was opened")
	}
}

// A run that begins at the end, because the one before was killed after its last
// commit, deletes too.
func TestFileIsDeletedByTheRunThatFindsItsEndSettled(t *testing.T) {
	t.Parallel()
	r, _, at := deleting(t, "a\nb\n")
	rd := r.mustOpen(at)
	if err := rd.Settle(t.Context(), at); err != nil || !there(t, r.path) {
		t.Fatalf("deleted before it was looked at (%v)", err)
	}
	if _, err := rd.Read(t.Context()); !errors.Is(err, connectors.ErrEndOfInput) || there(t, r.path) {
		t.Fatalf("still there (%v)", err)
	}
}

func TestGrownOrReplacedFileIsNotDeleted(t *testing.T) {
	t.Parallel()
	r, rd, at := deleting(t, "a\n")
	write(t, r.path, "b\n")
	if err := rd.Settle(t.Context(), at); err != nil || !there(t, r.path) {
		t.Fatalf("a file was deleted that had grown (%v)", err)
	}
	_, at, _ = drain(t, rd)
	must(t, os.Rename(r.path, r.path+".old"))
	write(t, r.path, "x\ny\n")
	if err := rd.Settle(t.Context(), at); err != nil || !there(t, r.path) || !there(t, r.path+".old") {
		t.Fatalf("another file was deleted (%v) (invariant 2)", err)
	}
}

func TestFileIsNotDeletedWithoutALease(t *testing.T) {
	t.Parallel()
	r, rd, at := deleting(t, "a\n")
	rd.claim.Gate = func() error { return connectors.ErrGateClosed }
	if err := rd.Settle(t.Context(), at); !errors.Is(err, connectors.ErrGateClosed) || !there(t, r.path) {
		t.Fatalf("%v", err)
	}
}

func TestCompressedFileIsDeletedAtItsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		r := newRig(t, Config{Format: "raw", Delete: true, Compression: string(c)}, string(pack(t, c, "a\n", "b\n")))
		rd := r.mustOpen(message.Position{})
		_, at, err := drain(t, rd)
		if !errors.Is(err, connectors.ErrEndOfInput) {
			t.Fatal(err)
		}
		if err := rd.Settle(context.Background(), at); err != nil || there(t, r.path) {
			t.Fatalf("%s: still there (%v)", c, err)
		}
	}
}
