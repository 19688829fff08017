package mirror

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

func newTestRelays(t *testing.T) *relays {
	spools := newTestSpools(t, 1<<30)
	r := newRelays(spools)
	t.Cleanup(r.Close)
	return r
}

func TestEqualRequestsShareResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelays(t)
		want := packResponse(100_000)
		var opened atomic.Int32
		open := func(context.Context) (io.ReadCloser, error) {
			opened.Add(1)
			time.Sleep(time.Second) // until all followers have joined
			return io.NopCloser(bytes.NewReader(want)), nil
		}
		var clients sync.WaitGroup
		send := func(key byte) {
			clients.Go(func() {
				c := newClient()
				if err := r.send(t.Context(), relayKey{key}, formPackets, open, c, followOptions{}); err != nil ||
					!bytes.Equal(c.Bytes(), want) {
					t.Errorf("send = %v with %d bytes, want %d", err, c.Len(), len(want))
				}
			})
		}
		for range 50 {
			send(1)
		}
		send(2)
		clients.Wait()
		if got := opened.Load(); got != 2 {
			t.Errorf("got %d requests to the origin for 2 different ones, want 2", got)
		}
		send(1) // from the kept response
		clients.Wait()
		if got := opened.Load(); got != 2 {
			t.Errorf("got %d requests to the origin after a later client, want 2", got)
		}
		time.Sleep(keepTime)
		synctest.Wait()
		send(1)
		clients.Wait()
		if got := opened.Load(); got != 3 {
			t.Errorf("got %d requests to the origin after %v, want 3", got, keepTime)
		}
		r.Close()
	})
}

func TestResponseEndsWithItsLastFollower(t *testing.T) {
	t.Parallel()
	r := newTestRelays(t)
	var cancelled atomic.Bool
	in, out := io.Pipe()
	open := func(ctx context.Context) (io.ReadCloser, error) {
		context.AfterFunc(ctx, func() {
			cancelled.Store(true)
			out.CloseWithError(ctx.Err())
		})
		return in, nil
	}
	first, leave := context.WithCancel(t.Context())
	second, leaveToo := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for _, ctx := range []context.Context{first, second} {
		clients.Go(func() {
			err := r.send(ctx, relayKey{1}, formPackets, open, newClient(), followOptions{})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("send = %v, want a cancelled context", err)
			}
		})
	}
	for r.find(relayKey{1}) == nil { // it also joins
		time.Sleep(time.Millisecond)
	}
	r.mu.Lock()
	y := r.byKey[relayKey{1}]
	r.mu.Unlock()
	leave()
	if _, err := out.Write(packResponse(8)[:17]); err != nil || cancelled.Load() {
		t.Errorf("Write = %v, cancelled %v, want the response to go on for others", err, cancelled.Load())
	}
	leaveToo()
	clients.Wait()
	if cancelled.Load() {
		t.Error("the response ended while it had a follower")
	}
	r.leave(y)
	r.Close()
	if !cancelled.Load() {
		t.Error("the response goes on without followers")
	}
}

func TestRefusalConcernsOneCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelays(t)
		want := packResponse(8)
		refused := func(context.Context) (io.ReadCloser, error) {
			time.Sleep(time.Second)
			return nil, fault.New(fault.Unauthenticated, "wrong token")
		}
		allowed := func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(want)), nil
		}
		var clients sync.WaitGroup
		clients.Go(func() {
			err := r.send(t.Context(), relayKey{1}, formPackets, refused, newClient(), followOptions{})
			if !fault.Is(err, fault.Unauthenticated) {
				t.Errorf("send = %v, want the refusal", err)
			}
		})
		synctest.Wait()
		clients.Go(func() {
			c := newClient()
			err := r.send(t.Context(), relayKey{1}, formPackets, allowed, c, followOptions{})
			if err != nil || !bytes.Equal(c.Bytes(), want) {
				t.Errorf("send = %v with %q, want %q", err, c.Bytes(), want)
			}
		})
		clients.Wait()
		r.Close()
	})
}

// A request does not follow an equal one that was just refused.
func TestRefusedRequestIsNotFollowed(t *testing.T) {
	t.Parallel()
	r := newTestRelays(t)
	open := func(ctx context.Context) (io.ReadCloser, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	y, _, err := r.join(relayKey{1}, formPackets, open)
	if err != nil {
		t.Fatal(err)
	}
	defer r.leave(y)
	y.end(fault.New(fault.Unauthenticated, "wrong token"))
	if got := r.find(relayKey{1}); got != nil {
		t.Error("an ended request is followed, want none")
		r.leave(got)
	}
}

func TestErrorsAreNotKept(t *testing.T) {
	t.Parallel()
	r := newTestRelays(t)
	opened := 0
	open := func(context.Context) (io.ReadCloser, error) {
		opened++
		return io.NopCloser(bytes.NewReader(protocol.AppendError(nil, "not our ref"))), nil
	}
	for range 2 {
		if err := r.send(t.Context(), relayKey{1}, formPackets, open, newClient(), followOptions{}); err != nil {
			t.Error(err)
		}
	}
	if opened != 2 {
		t.Errorf("got %d requests to the origin, want 2", opened)
	}
}

func TestRelayedRequest(t *testing.T) {
	t.Parallel()
	v2 := func(agent, session, want string) []byte {
		b := pktline.AppendLine(nil, "command=fetch")
		b = pktline.AppendLine(b, "agent="+agent)
		if session != "" {
			b = pktline.AppendLine(b, "session-id="+session)
		}
		b = pktline.AppendLine(pktline.AppendDelim(b), want)
		return pktline.AppendFlush(b)
	}
	v0 := func(features string) []byte {
		b := pktline.AppendLine(nil, "want 1 "+features)
		return pktline.AppendLine(pktline.AppendFlush(pktline.AppendLine(b, "want 2")), "done")
	}
	key := func(version protocol.Version, body []byte) relayKey {
		return newRelayedRequest("https://host/a", version, body).key
	}
	for _, test := range []struct {
		name    string
		version protocol.Version
		a, b    []byte
		equal   bool
	}{
		{"agents", protocol.V2, v2("git/1", "", "want 1"), v2("git/2", "", "want 1"), true},
		{"session IDs", protocol.V2, v2("git/1", "a", "want 1"), v2("git/1", "b", "want 1"), true},
		{"wants", protocol.V2, v2("git/1", "a", "want 1"), v2("git/1", "a", "want 2"), false},
		{"a want that looks like an agent", protocol.V2, v2("git/1", "a", "agent=1"), v2("git/1", "a", "agent=2"), false},
		{"version 0, agents", protocol.V0, v0("side-band-64k agent=a session-id=x"), v0("side-band-64k agent=b"), true},
		{"version 0, features", protocol.V0, v0("side-band-64k agent=a"), v0("side-band agent=a"), false},
		{"not a request", protocol.V2, []byte("zzzz"), []byte("zzzy"), false},
		{"empty", protocol.V2, nil, []byte("0000"), false},
	} {
		if got := key(test.version, test.a) == key(test.version, test.b); got != test.equal {
			t.Errorf("%s: equal keys = %v, want %v", test.name, got, test.equal)
		}
	}
	if key(protocol.V0, nil) == key(protocol.V1, nil) ||
		newRelayedRequest("https://host/b", protocol.V0, nil).key == key(protocol.V0, nil) {
		t.Error("the keys of different versions or repositories are equal")
	}
	if got := newRelayedRequest("", protocol.V2, v2("git/1", "a", "want 1")).body; !bytes.Equal(got,
		v2("git/1", "", "want 1")) {
		t.Errorf("body = %q, want it without the session ID", got)
	}
	for features, want := range map[string]form{"side-band-64k": formLines, "ofs-delta": formBytes} {
		if got := newRelayedRequest("", protocol.V0, v0(features)).form; got != want {
			t.Errorf("form with %s = %v, want %v", features, got, want)
		}
	}
}
