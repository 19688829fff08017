package roles

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// lockedLog is a log that is read while others write to it.
type lockedLog struct {
	mu   sync.Mutex
	text []byte
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// TestRemoteNodesFollowTheConfiguration applies several configurations. Nodes that do not change keep their
// connections, and removed nodes are closed. It checks all goroutines, so it is not parallel.
func TestRemoteNodesFollowTheConfiguration(t *testing.T) {
	before := goleak.IgnoreCurrent()
	var logged lockedLog
	n := &remoteNodes{
		router: router.New(nil), log: slog.New(slog.NewTextHandler(&logged, nil)),
	}
	n.table.log = n.log
	node := func(name string, weight int) config.NodeConfig {
		return config.NodeConfig{Name: name, Address: "127.0.0.1:1", Weight: weight, Transport: "channel"}
	}
	take := func(cfg config.Config, want ...string) {
		t.Helper()
		if err := n.apply(cfg); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range n.router.Status() {
			names = append(names, s.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("nodes %q, want %q", names, want)
		}
	}
	take(config.Config{Node: []config.NodeConfig{node("a", 1), node("b", 1)}}, "a", "b")
	a, b := n.table.nodes["a"].connection, n.table.nodes["b"].connection
	take(config.Config{Node: []config.NodeConfig{node("a", 1), node("b", 2), node("c", 1)}}, "a", "b", "c")
	if n.table.nodes["a"].connection != a || n.table.nodes["b"].connection == b {
		t.Error("connections of a are new or those of b old, want those of a kept and those of b replaced")
	}
	bad := node("d", 1)
	bad.SecretFile = "/nowhere/secret"
	if err := n.apply(config.Config{Node: []config.NodeConfig{node("e", 1), bad}}); err == nil {
		t.Error("apply with an unreadable secret: error = nil, want one")
	}
	if n.table.nodes["a"].connection != a || len(n.router.Status()) != 3 {
		t.Error("a refused configuration changed nodes, want the previous ones")
	}
	// A route leads to one of them alone.
	take(config.Config{Node: []config.NodeConfig{node("a", 1), node("f", 1)},
		Route: []config.RouteConfig{{Prefix: "team", Nodes: []string{"a"}}}}, "a")
	if !strings.Contains(logged.String(), "storage node without a route ignored\" node=f") {
		t.Errorf("log = %s, want a warning about f", logged.String())
	}
	if err := n.close(); err != nil {
		t.Errorf("close error = %v, want none", err)
	}
	goleak.VerifyNone(t, before)
}

// While small requests are about, packs make way for them.
func TestSmallRequestsNarrowThePump(t *testing.T) {
	t.Parallel()
	l := testDeps(t, config.RoleServe, config.DefaultConfig(), slog.New(slog.DiscardHandler),
		prometheus.NewRegistry()).lanes
	wide := l.pump.Width()
	seat, err := l.Small.Enter("")
	if err != nil {
		t.Fatal(err)
	}
	defer seat.Leave()
	if l.pump.Width() != wide {
		t.Error("the pump is narrow for a request of which nobody knows what it wants")
	}
	for deadline := time.Now().Add(time.Minute); ; { // a machine that is busy may let the moment pass
		if seat.Stay(); l.pump.Width() < wide {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("width of the pump is unchanged with small requests, want a smaller one")
		}
	}
}
