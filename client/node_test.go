package client_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/server/command"
)

// history is the content of the repository "demo" of the examples, for git fast-import.
const history = `commit refs/heads/main
mark :1
committer Ada <ada@example.com> 1700000000 +0000
data 6
begin
M 100644 inline README
data 14
Hello, world.

commit refs/heads/main
committer Ada <ada@example.com> 1700003600 +0000
data 6
go on
M 100755 inline run
data 5
true

tag v1
from :1
tagger Ada <ada@example.com> 1700000000 +0000
data 3
v1
`

// startNode starts a storage node that has the repository "demo", and returns its address. In a program it runs
// elsewhere:
//
//	packhorse storage --root /srv/git --listen unix:/run/packhorse/node.sock
func startNode() (address string, stop func()) {
	dir, err := os.MkdirTemp("", "node")
	check(err)
	root := filepath.Join(dir, "root")
	runGit(dir, "", "init", "--quiet", "--bare", "--initial-branch=main", filepath.Join(root, "demo.git"))
	runGit(filepath.Join(root, "demo.git"), history, "fast-import", "--quiet")
	ctx, cancel := context.WithCancel(context.Background())
	log, writer := io.Pipe()
	ended := make(chan struct{})
	address = "unix:" + filepath.Join(dir, "node.sock")
	go func() {
		defer close(ended)
		defer writer.Close()
		code := command.Main(ctx, command.Env{
			Args:    []string{"storage", "--root", root, "--listen", address, "--ops", "", "--log-format", "json"},
			Stdout:  io.Discard,
			Stderr:  writer,
			Environ: gittest.Env(),
		})
		if code != 0 {
			fmt.Fprintln(writer, "packhorse storage ended with", code)
		}
	}()
	lines := bufio.NewScanner(log)
	var all strings.Builder
	for serving := false; !serving; {
		if !lines.Scan() {
			panic("the node does not start:\n" + all.String())
		}
		all.WriteString(lines.Text() + "\n")
		serving = strings.Contains(lines.Text(), `"msg":"serving"`)
	}
	go io.Copy(io.Discard, log)
	return address, func() {
		cancel()
		<-ended
		check(os.RemoveAll(dir))
	}
}

func runGit(dir, stdin string, args ...string) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, gittest.Env(), strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("git %q: %v\n%s", args, err, out))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
