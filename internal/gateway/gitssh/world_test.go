package gitssh_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeNode is a router.Node made of functions.
type fakeNode struct {
	router.Node
	advertise func(session node.Session) ([]byte, error)
	serve     func(ctx context.Context, request io.Reader, response node.ResponseWriter) (node.Outcome, error)
}

func (n *fakeNode) Advertise(_ context.Context, _ git.RepoPath, session node.Session,
	response node.ResponseWriter) (node.Outcome, error) {
	text, err := n.advertise(session)
	if err == nil {
		response.SetLength(int64(len(text)))
		_, err = response.Write(text)
	}
	return node.Outcome{}, err
}

func (n *fakeNode) UploadPack(ctx context.Context, _ git.RepoPath, _ node.Session, request io.Reader,
	response node.ResponseWriter) (node.Outcome, error) {
	return n.serve(ctx, request, response)
}

func (n *fakeNode) ReceivePack(ctx context.Context, _ git.RepoPath, _ node.Session, _ node.Pusher, request io.Reader,
	response node.ResponseWriter) (
	node.Outcome, error) {
	return n.serve(ctx, request, response)
}

// server is a gateway for tests.
type server struct {
	t       *testing.T
	addr    string
	router  *router.Router
	pump    *bulk.Pump
	metrics *prometheus.Registry
	log     *lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// value is a metric's value, named as in "packhorse_lane_running{lane=small}".
func (s *server) value(name string) float64 {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			full := f.GetName()
			if labels != nil {
				full += "{" + strings.Join(labels, ",") + "}"
			}
			if full == name {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// eventually reports whether a condition becomes true within a time limit.
func eventually(is func() bool) bool { return gittest.Eventually(is) }

// writers is a gateway.Auth that accepts all names. Only identified callers may push.
type writers struct{}

func (writers) HTTP(r *http.Request) (auth.Identity, error) {
	name, _, _ := r.BasicAuth()
	return auth.Identity{Name: name, By: "token"}, nil
}

func (writers) May(_ context.Context, id auth.Identity, _ git.RepoPath, op auth.Operation) error {
	if op > auth.Read && id.Anonymous() {
		return fault.New(fault.Unauthenticated, "who are you?")
	}
	return nil
}

func (writers) Configured() bool { return true }

func (writers) RefRules(context.Context, auth.Identity, git.RepoPath) (node.RefRules, error) {
	return node.RefRules{}, nil
}

func (writers) Reader(context.Context, auth.Identity) func([]git.RepoPath) ([]bool, bool) { return nil }

// counting answers a push with how many bytes it has.
func counting() *fakeNode {
	return &fakeNode{
		advertise: func(s node.Session) ([]byte, error) {
			return []byte(string(s.Service) + " " + s.Version.String()), nil
		},
		serve: func(_ context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
			n, err := io.Copy(io.Discard, request)
			if err != nil {
				return node.Outcome{}, err
			}
			_, err = fmt.Fprintf(reply, "%d", n)
			return node.Outcome{Command: node.CommandPush}, err
		},
	}
}
