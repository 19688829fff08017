package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestRunbook runs every command of docs/how-to/runbook.md on a server, and finds every graph that it names.
func TestRunbook(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/how-to/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	graphs := panels(t)
	named := regexp.MustCompile(`\*([a-z]+): ([^*]+)\*`).FindAllStringSubmatch(string(text), -1)
	if len(named) == 0 {
		t.Error("the runbook names no graph")
	}
	for _, m := range named {
		if graph := m[1] + ": " + strings.Join(strings.Fields(m[2]), " "); !graphs[graph] {
			t.Errorf("there is no panel %s", graph)
		}
	}

	root := t.TempDir()
	repo := linear(t)
	if err := os.CopyFS(filepath.Join(root, "demo.git"), os.DirFS(repo.Dir)); err != nil {
		t.Fatal(err)
	}
	at := startRunbookServer(t, "serve", "--root", root)
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	here := strings.NewReplacer("127.0.0.1:9090", host(at.Ops), "127.0.0.1:8080", host(at.HTTP), "/srv/git", root)
	shell(t, "git clone -q --bare "+at.HTTP+"/demo "+filepath.Join(t.TempDir(), "clone"))
	general, ofStore, ok := strings.Cut(string(text), "\n## The store has problems\n")
	if !ok {
		t.Fatal("the runbook has no section about the store")
	}
	general, ofMirrors, ok := strings.Cut(general, "\n## An origin does not answer\n")
	if !ok {
		t.Fatal("the runbook has no section about origins")
	}
	ofMirrors, rest, _ := strings.Cut(ofMirrors, "\n## ")
	general += rest
	for _, command := range runbookCommands(general) {
		shell(t, here.Replace(command))
	}
	t.Run("mirrors", func(t *testing.T) {
		root, mirrors := t.TempDir(), filepath.Join(t.TempDir(), "mirrors.toml")
		table := fmt.Sprintf("[[mirror]]\nfrom = \"%s/\"\nto = \"o\"\nprivate = true\n", at.HTTP)
		if err := os.WriteFile(mirrors, []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
		ops := startRunbookServer(t, "mirror", "--config", mirrors, "--root", root).Ops
		shell(t, "packhorse mirror add o/demo --root "+root)
		here := strings.NewReplacer("127.0.0.1:9090", host(ops), "/srv/git", root, "github.com/acme/app", "o/demo")
		for _, command := range runbookCommands(ofMirrors) {
			shell(t, here.Replace(command))
		}
	})
	t.Run("store", func(t *testing.T) {
		node := newStoreWorld(t).serve("node", "")
		here := strings.NewReplacer("127.0.0.1:9090", host(node.ops), "/etc/packhorse/store.toml", node.config())
		for _, command := range runbookCommands(ofStore) {
			shell(t, here.Replace(command))
		}
	})
}

// runbookAddresses are the URLs of a server.
type runbookAddresses struct{ HTTP, Ops string }

// startRunbookServer starts a server that ends with the test.
func startRunbookServer(t *testing.T, args ...string) (at runbookAddresses) {
	t.Helper()
	p, err := startServer(t.TempDir(), append(gittest.Env(), "GORACE=atexit_sleep_ms=0"),
		append(args, "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil {
			t.Errorf("the server ended: %v\n%s", err, p.logged())
		}
	})
	for line := range strings.Lines(p.logged()) {
		if json.Unmarshal([]byte(line), &at) == nil && at.HTTP != "" {
			break
		}
	}
	return at
}

// runbookCommands lists the lines of code blocks, and code elsewhere that begins with our program and has an argument.
func runbookCommands(text string) (commands []string) {
	for i, part := range strings.Split(text, "```") {
		if i%2 == 0 {
			for _, m := range regexp.MustCompile("`(packhorse [^`]+ [^`]+)`").FindAllStringSubmatch(part, -1) {
				commands = append(commands, m[1])
			}
			continue
		}
		for line := range strings.Lines(strings.TrimPrefix(part, "sh\n")) {
			if line = strings.TrimSpace(line); line != "" {
				commands = append(commands, line)
			}
		}
	}
	return commands
}

// shell runs a command line, which has to end well; one that is to show something shows it.
func shell(t *testing.T, line string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -o pipefail; "+line)
	cmd.Dir = t.TempDir()
	cmd.Env = append(gittest.Env(), "PATH="+binDir+":"+os.Getenv("PATH"), "TERM=dumb")
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) == 0 && !strings.HasPrefix(line, "git ") {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
}

// panels are the titles of all graphs, with their dashboard's short name.
func panels(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../deploy/grafana/packhorse-*.json")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			Panels []struct{ Type, Title string }
		}
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "packhorse-"), ".json")
		for _, p := range d.Panels {
			if p.Type != "row" {
				all[name+": "+p.Title] = true
			}
		}
	}
	return all
}
