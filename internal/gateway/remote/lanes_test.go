package remote_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// keeping is a source that keeps one pack, and records the callers of the other packs.
type keeping struct {
	madeUp
	mu      sync.Mutex
	kept    packsource.Key
	callers []balance.Caller
}

func (k *keeping) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept = spec.Key()
	k.callers = append(k.callers, spec.Caller)
	return madeUpPack{&k.madeUp}, nil
}

func (k *keeping) Has(key packsource.Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept == key
}

// TestLanesOverTheWire checks that a node receives the caller of a session and reports whether it has to make the pack.
func TestLanesOverTheWire(t *testing.T) {
	t.Parallel()
	source := &keeping{madeUp: madeUp{send: func(_ context.Context, out packsource.Output) error {
		_, err := out.Write(packet)
		return err
	}}}
	w := newWorld(t, options{source: source})
	request := w.pack()
	repo, err := git.ParseRepoPath("app")
	w.do(err)
	ask := func(caller string) *answer {
		t.Helper()
		session := version2
		session.Caller = caller
		out := &answer{}
		if _, err := w.remote.UploadPack(context.Background(), repo, session, bytes.NewReader(request),
			out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := ask("alice"); !out.cold {
		t.Error("a pack that nobody has made is a hit")
	}
	if out := ask("192.0.2.0/24"); out.cold || out.bulk != 1 {
		t.Error("a pack that is kept is cold")
	}
	if source.callers[0] != "alice" || source.callers[1] != "192.0.2.0/24" {
		t.Errorf("made for %q", source.callers)
	}
	session := version2
	session.Caller = strings.Repeat("x", 1000)
	if _, err := w.remote.UploadPack(context.Background(), repo, session, bytes.NewReader(request),
		&answer{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a caller with a long name: %v", err)
	}
}

// TestSharesOverTheWire: a gateway learns whether a node refused a caller for what this one has had, or because it is
// full.
func TestSharesOverTheWire(t *testing.T) {
	t.Parallel()
	for _, share := range []bool{true, false} {
		source := &madeUp{open: func(context.Context) error {
			return &fault.Error{Kind: fault.Exhausted, Msg: "too much", RetryAfter: 7 * time.Second, CallerLimit: share}
		}}
		w := newWorld(t, options{source: source})
		_, err := w.ask(context.Background(), "app", w.pack(), &answer{})
		if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) != 7*time.Second ||
			fault.IsCallerLimit(err) != share {
			t.Errorf("share %t: %v", share, err)
		}
	}
}
