package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestCodeHostPage runs the commands of docs/how-to/build-a-code-host.md in one shell, beside the files of the page. It
// compares the output of each block with the one that the page shows below it.
func TestCodeHostPage(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl", "python3", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("*** there is no %s here: docs/how-to/build-a-code-host.md is NOT tested ***", program)
		}
	}
	dir, files := t.TempDir(), []string{"hook.py", "host.toml", "host.py"}
	script := "set -eo pipefail; trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
	var commands, shown []string
	for _, m := range regexp.MustCompile("(?s)```([a-z]+)\n(.*?)```\n").FindAllStringSubmatch(codeHostPage(t), -1) {
		switch language, block := m[1], m[2]; language {
		case "sh":
			script += block + "printf '\\036'\n" // the end of its output
			commands, shown = append(commands, block), append(shown, "")
		case "python", "toml":
			if err := os.WriteFile(filepath.Join(dir, files[0]), []byte(block), 0o600); err != nil {
				t.Fatal(err)
			}
			files = files[1:]
		default:
			shown[len(shown)-1] = block
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*rpcLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = append(gittest.Env(), "PATH="+binDir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	outputs := strings.Split(string(out), "\036")
	if err != nil || len(outputs) <= len(commands) {
		log, _ := os.ReadFile(filepath.Join(dir, "server.log"))
		t.Fatalf("%v after %d of %d blocks:\n%s\nlog:\n%s", err, len(outputs)-1, len(commands), out, tail(string(log), 4000))
	}
	for i, want := range shown {
		if !isShown(want, outputs[i]) {
			t.Errorf("%s\nprints\n%s\nwant\n%s", commands[i], outputs[i], want)
		}
	}
	clone := gittest.At(t, filepath.Join(dir, "app"))
	clone.Git("fsck", "--strict")
	if got, want := clone.Git("ls-tree", "-r", "--name-only", "HEAD"), "a.txt\np.txt"; got != want {
		t.Errorf("main has the files %q, want %q", got, want)
	}
}

// codeHostPage returns the page with free addresses.
func codeHostPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/how-to/build-a-code-host.md")
	if err != nil {
		t.Fatal(err)
	}
	free := map[string]string{}
	for _, port := range []string{"8080", "9090", "9100", "8000"} {
		address, err := freeAddress()
		if err != nil {
			t.Fatal(err)
		}
		free[port] = strings.TrimPrefix(address, "127.0.0.1:")
	}
	text := regexp.MustCompile(`127\.0\.0\.1(:|", )(\d+)`).ReplaceAllStringFunc(string(page), func(address string) string {
		port := address[len(address)-len("8080"):]
		return strings.TrimSuffix(address, port) + free[port]
	})
	return strings.Replace(text, "packhorse serve ",
		"packhorse serve --http 127.0.0.1:"+free["8080"]+" --ops 127.0.0.1:"+free["9090"]+" ", 1)
}

// isShown reports whether an output is as the page shows it. In JSON, the last line is compared, and can have more
// fields. Without a block below the commands, any output is right that is not an error.
func isShown(want, got string) bool {
	if want == "" {
		return !strings.Contains(got, `"error"`)
	}
	if !strings.HasPrefix(want, "{") {
		return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(want), `\.\.\.`, ".+") + "$").MatchString(got)
	}
	got = strings.TrimSuffix(got, "\n")
	var wanted, found any
	return json.Unmarshal([]byte(want), &wanted) == nil &&
		json.Unmarshal([]byte(got[strings.LastIndexByte(got, '\n')+1:]), &found) == nil &&
		len(missing("", wanted, found)) == 0
}
