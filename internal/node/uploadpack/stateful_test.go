package uploadpack

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// serveVariable makes the test binary an upload-pack that talks on its standard streams: its value is a directory to
// work in.
const serveVariable = "PACKHORSE_TEST_UPLOAD_PACK"

func TestMain(m *testing.M) {
	scratch := os.Getenv(serveVariable)
	if scratch == "" {
		os.Exit(m.Run())
	}
	if err := uploadPack(os.Args[len(os.Args)-1], scratch); err != nil {
		fmt.Fprintln(os.Stderr, "packhorse:", err)
		os.Exit(1)
	}
}

// stream is a Reply to a client on a pipe.
type stream struct{ *bufio.Writer }

func (s stream) SetLength(int64)      { panic("a session with state has announced a length") }
func (s stream) StartBulk(bool) error { return nil }

func (stream) ReserveMemory(int64) error { return nil }

// uploadPack serves one session with state.
func uploadPack(dir, scratch string) error {
	ctx := context.Background()
	runner, err := process.New(process.Options{Classes: map[process.Class]process.Limits{packsource.ClassPack: {Slots: 1,
		Queue: 1}}})
	if err != nil {
		return err
	}
	defer runner.Close(ctx)
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: scratch, Threads: 1})
	if err != nil {
		return err
	}
	r, err := repo.Open(dir, repo.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	session := node.Session{Version: protocol.ParseVersion(os.Getenv("GIT_PROTOCOL"))}
	server := New(source, Options{Agent: "packhorse/test"})
	response := stream{bufio.NewWriter(os.Stdout)}
	if _, err = server.Advertise(ctx, r, session, "", response); err == nil {
		err = response.Flush()
	}
	if err == nil {
		_, err = server.Serve(ctx, r, session, pktline.NewReader(os.Stdin), response)
	}
	if err == nil {
		err = response.Flush()
	}
	return err
}

// A real git client runs sessions over pipes. Each side waits for the other only where the protocol requires it.
func TestSessionsWithState(t *testing.T) {
	t.Parallel()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := newTestServer(t, 8, "packs")
	long := gittest.Random(t, 9, gittest.Shape{Commits: 300})
	versions := []string{"0", "1"}
	if testing.Short() { // they differ in one line
		versions = versions[:1]
	}
	for _, version := range versions {
		t.Run("version "+version, func(t *testing.T) {
			dir := t.TempDir()
			command := fmt.Sprintf("GORACE=atexit_sleep_ms=0 %s=%s '%s'", serveVariable,
				filepath.Join(dir, "scratch"), binary)
			// Each step is done with us and with git in two repositories, which then have to be the same.
			ours, theirs := gittest.InitAt(t, filepath.Join(dir, "ours.git")),
				gittest.InitAt(t, filepath.Join(dir, "theirs.git"))
			both := func(from string, args, theirArgs []string) {
				t.Helper()
				common := []string{"-c", "protocol.version=" + version, "fetch", "-q", "--force", "--update-shallow"}
				from = "file://" + from
				theirs.Git(slices.Concat(common, theirArgs, []string{from, "refs/*:refs/*"})...)
				ours.Git(slices.Concat(common, args, []string{"--upload-pack", command, from, "refs/*:refs/*"})...)
				if a, b := ours.Git("for-each-ref"), theirs.Git("for-each-ref"); a != b {
					t.Errorf("after fetch %q: refs\n%s\ngit\n%s", args, a, b)
				}
				if a, b := shallowFile(t, ours), shallowFile(t, theirs); a != b {
					t.Errorf("after fetch %q: boundary\n%s\ngit\n%s", args, a, b)
				}
				ours.Git("fsck", "--no-dangling")
			}
			step := func(from string, args ...string) {
				t.Helper()
				both(from, args, args)
			}
			step(s.Dir, "--depth=2")
			both(s.Dir, []string{"--deepen=1"}, []string{"--depth=3"}) // git before 2.54 cuts off history past a merge
			step(s.Dir, "--shallow-since=1600010000")
			step(s.Dir, "--unshallow")
			step(s.Dir)
			for _, r := range []*gittest.Repo{ours, theirs} { // what only the client has, so that it has much to say
				id, batch := r.ID("main"), r.Batch()
				for i := range 40 {
					id = batch.Commit(fmt.Sprintf("local %d", i), id)
				}
				batch.Store()
				r.Git("update-ref", "refs/local/x", id.String())
			}
			s.Git("fetch", "-q", long.Dir, "+refs/heads/main:refs/heads/long-"+version)
			step(s.Dir)
			step(long.Dir, "--no-tags")

			out, err := gittest.At(t, dir).Try("-c", "protocol.version="+version, "ls-remote", "--upload-pack", command,
				"file://"+s.Dir)
			if want := s.Git("ls-remote", "file://"+s.Dir); err != nil || out != want {
				t.Errorf("ls-remote: %v\n%s\ngit\n%s", err, out, want)
			}
			if _, err := ours.Try("-c", "protocol.version="+version, "fetch", "--upload-pack", command, "file://"+s.Dir,
				strings.Repeat("1", len(s.tips[0]))); err == nil {
				t.Error("fetched what does not exist")
			}
		})
	}
}

func shallowFile(t *testing.T, r *gittest.Repo) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.Dir, "shallow"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	lines := strings.Fields(string(text))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
