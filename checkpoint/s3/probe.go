package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	api "github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"

	dial "github.com/mqbridge/mqb/dial/s3"
)

// UnsafeError says that a store cannot keep checkpoint records, and what it did.
type UnsafeError struct {
	Store string // its identity
	Did   string // "ignores If-None-Match: …"
}

func (e *UnsafeError) Error() string {
	return fmt.Sprintf("%s cannot keep checkpoints: it %s", e.Store, e.Did)
}

// probed remembers the stores that passed in this process. Those that failed are
// probed again: they may have been upgraded.
var probed = struct {
	sync.Mutex
	stores map[string]chan bool // holds one value when nobody is probing: passed?
}{stores: map[string]chan bool{}}

func (s *Store) probeOnce(ctx context.Context) error {
	probed.Lock()
	turn, ok := probed.stores[s.Identity()]
	if !ok {
		turn = make(chan bool, 1)
		turn <- false
		probed.stores[s.Identity()] = turn
	}
	probed.Unlock()
	select {
	case passed := <-turn:
		var err error
		if !passed {
			err = s.probe(ctx)
		}
		turn <- err == nil
		return err
	case <-ctx.Done():
		return fmt.Errorf("probe %s: %w", s.Identity(), context.Cause(ctx))
	}
}

const (
	// heldBytes is the length of the PUT that is sent by half: more than all
	// buffers that would let a store see only the whole of it, or nothing.
	heldBytes = 256 << 10
	// wholeBytes is the length of the others. Little, as a store that refuses one
	// before it has read it closes the connection, and what was sent and not read
	// would destroy the answer.
	wholeBytes = 1 << 10
	// settle is how long half a PUT stands in the store before the other one is
	// made, so that a store that compares too early has done so.
	settle = 200 * time.Millisecond
	// probeTimeout bounds the probe.
	probeTimeout = 15 * time.Second
)

// probe asks the store for what a swap relies on. Sequential requests do not
// show it: a store may answer all of them rightly and still compare when a PUT
// begins and write when it ends, so that a delayed one overwrites its successor.
// So one PUT is held back half-way while another is completed. About 250 ms and
// a dozen requests, both conditions at a time.
func (s *Store) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	name := s.prefix + ".mqb-probe/" + rand.Text()
	g, probing := errgroup.WithContext(ctx)
	g.Go(func() error { return (&trial{Store: s, object: name + "-create"}).create(probing) })
	g.Go(func() error { return (&trial{Store: s, object: name + "-swap"}).swap(probing) })
	return g.Wait()
}

// trial is the probe of one condition on an object of its own.
type trial struct {
	*Store
	object string
}

// condition is the header of a PUT; the zero value is none.
type condition struct{ header, value string }

func (c condition) String() string {
	if c.header == ifMatch {
		return c.header
	}
	return c.header + ": " + c.value
}

const (
	ifMatch     = "If-Match"
	ifNoneMatch = "If-None-Match"
)

func (t *trial) create(ctx context.Context) error {
	defer t.remove(ctx)
	c := condition{ifNoneMatch, "*"}
	if err := t.race(ctx, c); err != nil {
		return err
	}
	return t.refuses(ctx, c, "over an object")
}

func (t *trial) swap(ctx context.Context) error {
	defer t.remove(ctx)
	// Nothing is there yet, so nothing matches.
	if err := t.refuses(ctx, condition{ifMatch, `"00000000000000000000000000000000"`}, "where there is no object"); err != nil {
		return err
	}
	etag, err := t.put(ctx, condition{ifNoneMatch, "*"}, whole('0'))
	if err != nil {
		return t.mustWrite(condition{ifNoneMatch, "*"}, err)
	}
	if etag == "" {
		return t.unsafe("gives a written object no ETag")
	}
	c := condition{ifMatch, etag}
	if err := t.race(ctx, c); err != nil {
		return err
	}
	return t.refuses(ctx, c, "with the ETag of an object that was replaced")
}

// race makes two PUTs with the same condition: half of one, all of another, the
// rest of the first. One of them must win, and its object must be there.
func (t *trial) race(ctx context.Context, c condition) error {
	held := holdBack('1')
	first := make(chan error, 1)
	go func() {
		_, err := t.put(ctx, c, held)
		first <- err
	}()
	var early error
	var answered bool
	select {
	case <-held.half:
		pause := time.NewTimer(settle)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	case early = <-first:
		answered = true
	}
	_, second := t.put(ctx, c, whole('2'))
	close(held.release)
	if !answered {
		early = <-first
	}
	switch {
	case early == nil && second == nil:
		// Told apart for people only: either is the end.
		if err := t.refuses(ctx, c, "whose condition did not hold"); err != nil {
			return err
		}
		return t.unsafe("races " + c.String() + ": a PUT whose body was sent by half, and finished after another one had taken its place, replaced it")
	case early != nil && second != nil:
		return t.mustWrite(c, second)
	}
	lost, winner := early, bytes.Repeat([]byte{'2'}, wholeBytes)
	if second != nil {
		lost, winner = second, bytes.Repeat([]byte{'1'}, heldBytes)
	}
	if !refusal(lost) {
		return fmt.Errorf("probe %s: %s: %w", t.Identity(), c, lost)
	}
	return t.holds(ctx, c, winner)
}

// refuses makes a PUT that must not be done.
func (t *trial) refuses(ctx context.Context, c condition, where string) error {
	_, err := t.put(ctx, c, whole('3'))
	switch {
	case err == nil:
		return t.unsafe("ignores " + c.String() + ": it did a PUT " + where)
	case !refusal(err):
		return t.mustWrite(c, err)
	}
	return nil
}

// holds checks that the object is the winner's: an answer is not yet a deed.
func (t *trial) holds(ctx context.Context, c condition, want []byte) error {
	out, err := t.client.API.GetObject(ctx, &api.GetObjectInput{Bucket: &t.client.Bucket, Key: &t.object})
	if err != nil {
		return fmt.Errorf("probe %s: read back: %w", t.Identity(), err)
	}
	defer out.Body.Close()
	body, err := io.ReadAll(io.LimitReader(out.Body, heldBytes+1))
	if err != nil {
		return fmt.Errorf("probe %s: read back: %w", t.Identity(), err)
	}
	if !bytes.Equal(body, want) {
		return t.unsafe("reverts objects: a PUT that it refused under " + c.String() + " replaced the one it had accepted")
	}
	return nil
}

func (t *trial) unsafe(did string) error { return &UnsafeError{Store: t.Identity(), Did: did} }

// mustWrite judges an error where the store should have written, or refused by
// the condition alone.
func (t *trial) mustWrite(c condition, err error) error {
	switch status := dial.Status(err); {
	case status == http.StatusNotImplemented || status == http.StatusBadRequest:
		return t.unsafe(fmt.Sprintf("does not know %s: %s (%d)", c, dial.Code(err), status))
	case refusal(err):
		return t.unsafe(fmt.Sprintf("refuses every PUT under %s: %s (%d)", c, dial.Code(err), dial.Status(err)))
	}
	return fmt.Errorf("probe %s: PUT with %s: %w", t.Identity(), c, err)
}

// refusal: the answer of a store to a condition that does not hold.
func refusal(err error) bool {
	switch dial.Status(err) {
	case http.StatusPreconditionFailed, http.StatusConflict:
		return true
	case http.StatusNotFound:
		return dial.Code(err) == "NoSuchKey"
	}
	return false
}

// put sends body as it comes, unsigned, since a signature would want all of it first.
func (t *trial) put(ctx context.Context, c condition, body probeBody) (etag string, err error) {
	in := &api.PutObjectInput{Bucket: &t.client.Bucket, Key: &t.object, Body: body, ContentLength: aws.Int64(body.Size())}
	switch c.header {
	case ifNoneMatch:
		in.IfNoneMatch = &c.value
	case ifMatch:
		in.IfMatch = &c.value
	}
	out, err := t.client.API.PutObject(ctx, in, dial.Once, func(o *api.Options) {
		o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
		// Asking whether to go on would keep the body back by itself.
		o.ContinueHeaderThresholdBytes = -1
	})
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

// remove deletes the object, if we may.
func (t *trial) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	_, _ = t.client.API.DeleteObject(ctx, &api.DeleteObjectInput{Bucket: &t.client.Bucket, Key: &t.object})
}

// removeTimeout bounds the removal of a probe's object.
const removeTimeout = 3 * time.Second

type probeBody interface {
	io.Reader
	Size() int64
}

func whole(b byte) probeBody { return bytes.NewReader(bytes.Repeat([]byte{b}, wholeBytes)) }

// heldBody is a body whose second half waits for release.
type heldBody struct {
	content byte
	sent    int
	half    chan struct{} // closed when the first half was handed to the connection
	release chan struct{}
}

func holdBack(b byte) *heldBody {
	return &heldBody{content: b, half: make(chan struct{}), release: make(chan struct{})}
}

func (h *heldBody) Size() int64 { return heldBytes }

func (h *heldBody) Read(p []byte) (int, error) {
	end := heldBytes
	switch {
	case h.sent < heldBytes/2:
		end = heldBytes / 2
	case h.sent == heldBytes/2:
		close(h.half)
		<-h.release
	case h.sent == heldBytes:
		return 0, io.EOF
	}
	n := min(len(p), end-h.sent)
	for i := range p[:n] {
		p[i] = h.content
	}
	h.sent += n
	return n, nil
}
