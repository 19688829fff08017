package command

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// runMain runs a command and returns its exit code and what it printed.
func runMain(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Main(context.Background(), Env{Args: args, Stdout: &out, Stderr: &errs, Stdin: strings.NewReader("")})
	return code, out.String(), errs.String()
}

// socketDir is a directory whose path is short enough for a socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serveAdmin answers on the admin socket of a state directory until the test ends.
func serveAdmin(t *testing.T, state string, service internalv1connect.AdminServiceHandler) {
	t.Helper()
	l, err := net.Listen("unix", config.AdminSocket(state))
	if err != nil {
		t.Fatal(err)
	}
	server := control.New(control.Options{Admin: service, Ready: func() error { return nil },
		Log: slog.New(slog.DiscardHandler)}).HTTPServer()
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
}

func TestAdminCommands(t *testing.T) {
	t.Parallel()
	state := socketDir(t)
	routes := router.New(nil)
	down := func() error { return fault.New(fault.Unavailable, "nobody answers") }
	err := routes.Set([]router.Route{
		{Replicas: []*router.Replica{{Name: "a", Weight: 2}}},
		{Prefix: "team", Replicas: []*router.Replica{{Name: "b", Weight: 1, Ready: down}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	serveAdmin(t, state, &adminapi.Service{Router: routes})

	config := filepath.Join(state, "packhorse.toml")
	if err := os.WriteFile(config, []byte("state = \""+state+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runMain("nodes", "--config", config)
	if code != 0 || !strings.Contains(out, "NODE  STATE  WEIGHT") ||
		!strings.Contains(out, "a     up     2       0        0       0       all") ||
		!strings.Contains(out, "b: nobody answers") {
		t.Errorf("nodes: %d\n%s%s", code, out, errs)
	}
	if _, out, _ := runMain("__complete", "drain", "node", "--state", state, ""); !strings.HasPrefix(out, "a\nb\n") {
		t.Errorf("names are completed with %q", out)
	}
	for _, step := range []struct{ args, want string }{
		{"drain node a", "a: drained, 0 requests running\n"},
		{"drain node a", "a: drained, 0 requests running\n"},
		{"undrain node a", "a: up, 0 requests running\n"},
		{"undrain node b", "b: down, 0 requests running\n"},
	} {
		if code, out, errs := runMain(append(strings.Fields(step.args), "--state", state)...); code != 0 || out != step.want {
			t.Errorf("%s: %d %q %q, want %q", step.args, code, out, errs, step.want)
		}
	}
	if code, _, errs := runMain("drain", "node", "../c", "--state", state); code != exitFailed ||
		!strings.Contains(errs, "packhorse: ") {
		t.Errorf("an unknown node: %d %q", code, errs)
	}
	code, out, _ = runMain("nodes", "--json", "--state", state)
	var list []adminapi.NodeStatus
	if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil || len(list) != 2 || list[0].Name != "a" ||
		!list[0].Up || list[1].Up ||
		list[1].Prefixes[0] != "team" {
		t.Errorf("nodes --json: %d %v\n%s", code, err, out)
	}
}

func TestNodesOfAStore(t *testing.T) {
	t.Parallel()
	state := socketDir(t)
	routes := router.New(nil)
	replica := func(name, store string) *router.Replica {
		return &router.Replica{Name: name, Store: func() (string, bool) { return store, true }}
	}
	a, b := replica("a", "s1"), replica("b", "s1")
	err := routes.Set([]router.Route{{Replicas: []*router.Replica{a, b}},
		{Prefix: "x", Replicas: []*router.Replica{a, replica("c", "")}}})
	if err != nil {
		t.Fatal(err)
	}
	serveAdmin(t, state, &adminapi.Service{Router: routes})
	code, out, errs := runMain("nodes", "--state", state)
	for _, want := range []string{"FAILED  STORE  HELD  REPOSITORIES\n", " 0       s1     0     all x\n",
		" 0       -      0     x\n",
		"\na: pushes are refused: the storage nodes of the route have different object stores (a: s1, c: none): start"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("nodes: exit code %d, output %q %q, want %q in it", code, out, errs, want)
		}
	}
	if strings.Contains(out, "\nb: ") {
		t.Errorf("nodes: output %q, want nothing about b", out)
	}

	var report doctor.Report
	doctor.Nodes(t.Context(), askerOf(config.AdminSocket(state)), &report)
	if got, want := report.Facts[doctor.GroupNodes], "a is up, store s1; b is up, store s1; c is up, store none or not "+
		"known"; got != want {
		t.Errorf("doctor: facts about nodes = %q, want %q", got, want)
	}
	if f := report.Findings; len(f) != 1 || f[0].Severity != doctor.Problem || f[0].Subject != "a, c" ||
		!strings.HasSuffix(f[0].Text, "(a: s1, c: none)") || f[0].Advice != router.AllowPushes {
		t.Errorf("doctor: findings about nodes = %+v, want one problem of a and c", f)
	}
}

func TestAdminCommandsWithoutAGateway(t *testing.T) {
	t.Parallel()
	state := socketDir(t)
	code, _, errs := runMain("nodes", "--state", state)
	if code != exitFailed || !strings.Contains(errs, "no gateway answers at "+state+"/admin.sock: start the gateway") {
		t.Errorf("no socket: %d %q", code, errs)
	}
	leave(t, config.AdminSocket(state))
	if code, _, errs := runMain("nodes", "--state", state); code != exitFailed ||
		!strings.Contains(errs, "no gateway answers at") {
		t.Errorf("a socket that was left: %d %q", code, errs)
	}
	if code, _, errs := runMain("drain", "a", "--state", state); code != exitUsage ||
		!strings.Contains(errs, "packhorse drain node a") {
		t.Errorf("without \"node\": exit code %d, %q", code, errs)
	}
	if code, _, errs := runMain("drain", "node", "--state", state); code != exitUsage ||
		!strings.Contains(errs, "takes one NAME") {
		t.Errorf("no name: %d %q", code, errs)
	}
	if code, _, errs := runMain("nodes"); code != exitUsage || !strings.Contains(errs, "--state DIR") { // there is no HOME
		t.Errorf("no state: %d %q", code, errs)
	}
}

// leave makes a socket file without a listener, like one of a killed process.
func leave(t *testing.T, file string) {
	t.Helper()
	l, err := net.Listen("unix", file)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}
