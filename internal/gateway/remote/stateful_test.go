package remote_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// frontVariable is the environment variable that makes this binary the program that git runs instead of ssh.
const frontVariable = "PACKHORSE_TEST_FRONT"

// beSSH connects git to the front at an address: "ssh [-o OPTION] HOST COMMAND".
func beSSH(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	version := protocol.ParseVersion(os.Getenv("GIT_PROTOCOL"))
	fmt.Fprintf(conn, "%d %s\n", version, os.Args[len(os.Args)-1])
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// front serves sessions with state, as SSH has them, from a remote node.
type front struct {
	*world
	address string
	mu      sync.Mutex
	errors  []error
}

func (w *world) newFront() *front {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.do(err)
	f := &front{world: w, address: l.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				if err := f.serve(conn); err != nil {
					f.mu.Lock()
					f.errors = append(f.errors, err)
					f.mu.Unlock()
				}
			})
		}
	})
	w.t.Cleanup(func() { l.Close(); running.Wait() })
	return f
}

// serve is one connection: a line with what is wanted, and the session.
func (f *front) serve(conn net.Conn) error {
	in := bufio.NewReader(conn)
	var version protocol.Version
	var service, path string
	if _, err := fmt.Fscanf(in, "%d %s %s\n", &version, &service, &path); err != nil {
		return err
	}
	repo, err := git.ParseRepoPath(strings.Trim(path, "'/"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	session := node.Session{Service: protocol.Service(service), Version: version}
	reply := connReply{conn}
	if _, err := f.remote.Advertise(ctx, repo, session, reply); err != nil {
		return err
	}
	if session.Service == protocol.UploadPack {
		_, err = f.remote.UploadPack(ctx, repo, session, in, reply)
	} else {
		_, err = f.remote.ReceivePack(ctx, repo, session, node.Pusher{Name: "ada", Address: "192.0.2.1"}, in, reply)
	}
	return err
}

// connReply is the answer on a connection.
type connReply struct{ net.Conn }

func (connReply) SetLength(int64)      {}
func (connReply) StartBulk(bool) error { return nil }

func (connReply) ReserveMemory(int64) error { return nil }
func (connReply) Flush() error              { return nil }

// git runs git in dir, or in the current directory if dir is "", with the front instead of ssh.
func (f *front) git(dir string, args ...string) (string, error) {
	binary, err := os.Executable()
	f.do(err)
	ssh := fmt.Sprintf("core.sshCommand=env %s=%s '%s'", frontVariable, f.address, binary)
	return gittest.At(f.t, dir).Try(append([]string{"-c", ssh, "-c", "ssh.variant=ssh"}, args...)...)
}

func (f *front) mustGit(dir string, args ...string) {
	f.t.Helper()
	if out, err := f.git(dir, args...); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.t.Fatalf("git %s: %v\n%s\nthe front: %v", strings.Join(args, " "), err, out, f.errors)
	}
}

var roads = map[string]options{"channel": {}, "in band": {inBand: true}, "unix": {unix: true}}

// Git's own client talks in turn with a node elsewhere: versions 0 and 1 with state.
func TestFetchWithState(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			f := w.newFront()
			repo := w.repo("team/app.git", 300<<10)
			for _, version := range []string{"0", "1"} {
				version = "protocol.version=" + version
				dir := filepath.Join(t.TempDir(), "clone")
				f.mustGit(t.TempDir(), "-c", version, "clone", "-q", "ssh://host/team/app", dir)
				// Negotiation over more than one turn, on both sides what the other does not have.
				clone := gittest.At(t, dir)
				mine, batch := clone.ID("main"), clone.Batch()
				for i := range 40 {
					mine = batch.Commit(fmt.Sprint("mine ", i), mine)
				}
				batch.Store()
				clone.Git("update-ref", "refs/heads/mine", mine.String())
				next := repo.Commit("next "+version, repo.ID("main"))
				repo.Git("update-ref", "refs/heads/main", next.String())
				f.mustGit(dir, "-c", version, "fetch", "-q")
				if got := clone.ID("origin/main"); got != next {
					t.Errorf("%s: fetched %s, want %s", version, got, next)
				}
				f.mustGit(dir, "-c", version, "fetch", "-q") // wants nothing
				f.mustGit(t.TempDir(), "-c", version, "clone", "-q", "--depth=1", "ssh://host/team/app", "shallow")
			}
			if !o.inBand && !eventually(func() bool {
				return w.value("packhorse_channel_transfers_total",
					"end=ok") > 0
			}) {
				t.Error("no transfer took a side channel, or none ended well")
			}
		})
	}
}

// A client that disconnects in the middle of a session with state ends it at the node.
func TestStatefulClientGoesAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	w.repo("app.git", 100)
	repo, err := git.ParseRepoPath("app")
	w.do(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	session := node.Session{}
	client, server := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := w.remote.UploadPack(ctx, repo, session, server, &answer{})
		ended <- err
	}()
	want := gittest.At(t, filepath.Join(w.root, "app.git")).ID("main")
	fmt.Fprintf(client, "0032want %s\n", want)
	client.Close()
	if err := <-ended; !fault.Is(err, fault.Invalid) && !errors.Is(err, io.EOF) {
		t.Errorf("the error is %v", err)
	}
	if !eventually(func() bool { return strings.Contains(w.log.String(), "operation=upload_pack result=") }) {
		t.Error("the session goes on at the node")
	}
}
