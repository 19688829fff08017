package uploadpack

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// testPlace is a repository that is copied here at 10 MB a second.
type testPlace struct {
	layers *refs.Layers
	start  time.Time
	total  int64
	wait   time.Duration // maximum duration of Use
	stalls int64         // bytes after which the copying stops; 0: never
	users  int
	uses   int
}

func (p *testPlace) Layers(context.Context) (*refs.Layers, error) { return p.layers, nil }
func (p *testPlace) Known() *refs.Layers                          { return p.layers }
func (p *testPlace) ID() string                                   { return "id" }

func (p *testPlace) Use(ctx context.Context, progress func(done, total int64)) (func(), error) {
	p.uses++
	for end := time.Now().Add(p.wait); ; {
		done := int64(time.Since(p.start).Seconds() * 10e6)
		if p.stalls > 0 {
			done = min(done, p.stalls)
		}
		if done >= p.total {
			p.users++
			return func() { p.users-- }, nil
		}
		if progress != nil {
			progress(done, p.total)
		}
		if time.Now().After(end) {
			return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "the objects are being copied")
		}
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// TestCloneWhileObjectsAreCopied clones from a repository whose objects come meanwhile.
func TestCloneWhileObjectsAreCopied(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	id := g.Commit("one")
	g.Git("update-ref", "refs/heads/main", id.String())
	for name, c := range map[string]struct {
		place    testPlace
		arg      string
		contains []string // of the response, in this order
		lacks    string
		kind     fault.Kind // of the error before the response
		reported fault.Kind // in the response
	}{
		"at once": {place: testPlace{total: 0}, lacks: "hydrating"},
		"soon":    {place: testPlace{total: 15e6}, lacks: "hydrating"},
		"in a while": {place: testPlace{total: 90e6}, contains: []string{"packfile", "hydrating: 22% (19.8/90.0 MB)",
			"hydrating: 7", "done", "0000"}},
		"slowly": {place: testPlace{total: 90e6, wait: 3 * time.Second}, contains: []string{"hydrating: 22%", "done",
			"0000"}},
		"stalled": {place: testPlace{total: 90e6, wait: 3 * time.Second, stalls: 40e6},
			contains: []string{"hydrating: 22%", "\x03packhorse: "}, reported: fault.Unavailable},
		"no progress": {place: testPlace{total: 90e6, wait: 3 * time.Second}, arg: "no-progress", kind: fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := c.place
				p.start = time.Now()
				if p.wait == 0 {
					p.wait = 30 * time.Second
				}
				p.layers = &refs.Layers{Number: 1, Head: "refs/heads/main", Changes: []refs.Ref{
					{Name: "refs/heads/main", ID: id, PeelKnown: true}}}
				r, err := repo.Open(g.Dir, repo.Options{Place: &p})
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				s := &testServer{repo: r, format: git.SHA1}
				response, _, err := s.serve(New(keySource{}, Options{Wants: WantsAny}), cloneRequest(id, c.arg))
				got := response.String()
				text := got
				for _, want := range c.contains {
					_, after, ok := strings.Cut(text, want)
					if !ok {
						t.Fatalf("got %q, want %q in this order", got, c.contains)
					}
					text = after
				}
				reported, isReported := errors.AsType[*node.ReportedError](err)
				switch {
				case c.lacks != "" && strings.Contains(got, c.lacks):
					t.Errorf("got %q, want no %q", got, c.lacks)
				case c.reported != 0:
					if !isReported || !fault.Is(reported.Err, c.reported) {
						t.Errorf("got %v, want an error of kind %v in the response", err, c.reported)
					}
				case fault.KindOf(err) != c.kind:
					t.Errorf("got %v, want the kind %v", err, c.kind)
				case c.kind != 0 && got != "":
					t.Errorf("got %q before an error, want nothing", got)
				}
				if p.users != 0 {
					t.Errorf("%d users hold the objects after the request", p.users)
				}
			})
		})
	}
}

// cloneRequest returns a fetch of one object without haves.
func cloneRequest(id git.ObjectID, args ...string) []byte {
	b := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
	for _, arg := range append(args, "want "+id.String(), "done") {
		if arg != "" {
			b = pktline.AppendLine(b, arg)
		}
	}
	return pktline.AppendFlush(b)
}

// TestCachedAnswerNeedsNoObjects: a pack that is there is sent without the objects.
func TestCachedAnswerNeedsNoObjects(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	id := g.Commit("one")
	p := &testPlace{start: time.Now(), layers: &refs.Layers{Number: 1, Head: "refs/heads/main", Changes: []refs.Ref{
		{Name: "refs/heads/main", ID: id, PeelKnown: true}}}}
	r, err := repo.Open(g.Dir, repo.Options{Place: p})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, server := &testServer{repo: r, format: git.SHA1}, New(keptSource{}, Options{Wants: WantsAny})
	first, _, err := s.serve(server, cloneRequest(id))
	if err != nil {
		t.Fatal(err)
	}
	uses := p.uses
	again, _, err := s.serve(server, cloneRequest(id))
	if err != nil || again.String() != first.String() || p.uses != uses {
		t.Errorf("the second clone: %q, %v, with %d more uses of the objects; want %q without one", again, err,
			p.uses-uses, first)
	}
	if !strings.Contains(first.String(), "packfile") {
		t.Errorf("got %q, want a pack", first)
	}
}

// keptSource is a keySource that has every pack.
type keptSource struct{ keySource }

func (keptSource) Has(packsource.Key) bool { return true }
