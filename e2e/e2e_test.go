package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// binDir holds the built binary; it comes first in the stories' PATH.
var binDir string

// buildFlags are those of go for programs in tests.
var buildFlags = []string{"build", "-buildvcs=false", "-ldflags", "-s -w -X main.version=v0-test"}

func TestMain(m *testing.M) { os.Exit(run(m)) }

// setParallel runs twice as many stories in parallel as there are CPUs, because stories wait for half of their time.
// The flag -parallel overrides it.
func setParallel() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	}
}

func run(m *testing.M) int {
	if socket := os.Getenv(workerSocket); socket != "" {
		return appWorker(socket)
	}
	dir, err := os.MkdirTemp("", "packhorse-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	setParallel()
	tests := func() int {
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, "left running:", err)
			return 1
		}
		return code
	}
	if given := os.Getenv("PACKHORSE_BINARY"); given != "" { // hold a binary that was built already to the stories
		for _, name := range []string{"packhorse", "packhorse-search", "packhorse-bench"} {
			if err := os.Symlink(filepath.Join(filepath.Dir(given), name), filepath.Join(dir, name)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return tests()
	}
	args, cgo := slices.Clone(buildFlags), "CGO_ENABLED=0"
	if serverHasRaceDetector() {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	build := exec.Command("go", append(args, "-o", dir+"/", "../cmd/...")...)
	build.Env = append(os.Environ(), cgo, "GOGC=400") // compilers need less CPU time
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the programs: %v\n%s", err, out)
		return 1
	}
	return tests()
}

// serverHasRaceDetector reports whether the servers in the tests are built with the race detector. With -short they are
// not, because it makes them several times slower. The detector is still in the tests of the packages then.
func serverHasRaceDetector() bool { return raceDetector && !testing.Short() }

// skipIfShort skips a test that repeats others in another shape, or that takes long.
func skipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("only without -short")
	}
}

// TestShell runs stories about commands, configuration, start and shutdown.
func TestShell(t *testing.T) { runStories(t, "testdata/shell") }

// runStories runs the scripts of a directory, each in a separate directory with the templates' repositories at hand.
func runStories(t *testing.T, dir string) {
	t.Helper()
	runStoriesIn(t, shape{}, dir, makeTemplates(t), "")
}

// runStoriesWith is runStories with existing templates, additional scripts, and servers without a search index. Git
// clients speak the given version of the protocol, which is also in $PROTOCOL. If protocol is empty, they use their
// default.
func runStoriesWith(t *testing.T, dir, templates, protocol string, scripts ...string) {
	t.Helper()
	runStoriesIn(t, shape{noIndex: true}, dir, templates, protocol, scripts...)
}

// runStoriesIn is runStoriesWith where serve starts processes of this shape. An empty dir has no scripts.
func runStoriesIn(t *testing.T, shape shape, dir, templates, protocol string, scripts ...string) {
	t.Helper()
	if dir != "" { // of a directory and files the library takes the directory alone
		found, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s has no scripts: %v", dir, err)
		}
		scripts = append(found, scripts...)
	}
	testscript.Run(t, testscript.Params{
		Files: scripts,
		Setup: func(env *testscript.Env) error {
			for _, v := range gittest.Env()[len(os.Environ()):] {
				name, value, _ := strings.Cut(v, "=")
				env.Setenv(name, value)
			}
			if protocol != "" {
				env.Setenv("PROTOCOL", protocol)
				env.Setenv("GIT_CONFIG_COUNT", "4")
				env.Setenv("GIT_CONFIG_KEY_3", "protocol.version")
				env.Setenv("GIT_CONFIG_VALUE_3", protocol)
			}
			path := binDir
			if shape.lfs != "" {
				path += string(filepath.ListSeparator) + shape.lfs
			}
			env.Setenv("PATH", path+string(filepath.ListSeparator)+os.Getenv("PATH"))
			env.Setenv("GORACE", "atexit_sleep_ms=0") // by default every end of the binary would take a second
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("REPOS", filepath.Join(env.WorkDir, "repos"))
			env.Setenv("TEMPLATES", templates)
			env.Setenv("NEWER_GIT", os.Getenv(newerGit))
			env.Setenv("NEWER_PATH", filepath.Dir(os.Getenv(newerGit))+string(filepath.ListSeparator)+env.Getenv("PATH"))
			sockets, err := os.MkdirTemp("", "ph")
			if err != nil {
				return err
			}
			env.Setenv("SOCKETS", sockets) // a directory with a short path
			s := &story{dir: env.WorkDir, shape: shape, sockets: sockets, nodes: map[string]*serverProcess{}}
			env.Values[storyKey{}] = s
			env.Defer(func() { s.end(env.T()) })
			return os.MkdirAll(filepath.Join(env.WorkDir, "repos"), 0o755)
		},
		Cmds: commands,
		Condition: func(name string) (bool, error) {
			switch name {
			case "v2":
				return protocol == "" || protocol == "2", nil
			case "store":
				return shape.store != nil, nil
			}
			return condition(name)
		},
	})
}

// newerGit is the environment variable that names a git of 2.46 or later (.ci/newer-git).
const newerGit = "PACKHORSE_TEST_NEWER_GIT"

// condition adds to testscript's own: [linux] and the like are there already.
func condition(name string) (bool, error) {
	switch name {
	case "procfs": // /proc describes processes
		return runtime.GOOS == "linux", nil
	case "gitlfs": // git-lfs is installed
		_, err := exec.LookPath("git-lfs")
		return err == nil, nil
	case "newergit": // $NEWER_GIT is a git that knows reftables and credentials with an authtype
		return os.Getenv(newerGit) != "", nil
	}
	return false, fmt.Errorf("unknown condition %q", name)
}

// templates are made once.
var templates struct {
	sync.Mutex
	dir string
}

// makeTemplates builds the repositories that stories copy with the repo command:
//
//	random    about 120 commits with merges, odd names and tags of everything; one pack, loose refs
//	sha256    a small one in the other object format
//	linear    20 commits on main, one file each, a tag on every fifth; main's tip is the annotated tag v20's commit
//	long      3,000 empty commits on main
//	blobs     files of 300 kB that do not compress, for transfers that take more than one packet
func makeTemplates(t *testing.T) string {
	t.Helper()
	templates.Lock()
	defer templates.Unlock()
	if templates.dir != "" {
		return templates.dir
	}
	dir := filepath.Join(binDir, "templates")
	for name, repo := range map[string]*gittest.Repo{
		"random": gittest.Random(t, 1, gittest.Shape{Commits: 120, Branches: 6, Merge: 0.25}),
		"sha256": gittest.Random(t, 2, gittest.Shape{Commits: 15, Format: "sha256"}),
		"linear": linear(t),
		"blobs":  blobs(t),
		"long":   long(t),
	} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(repo.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	templates.dir = dir
	return dir
}

func linear(t *testing.T) *gittest.Repo {
	repo := gittest.Init(t)
	var in strings.Builder
	for i := 1; i <= 20; i++ {
		fmt.Fprintf(&in, "commit refs/heads/main\nmark :%d\ncommitter C <c@example.com> %d +0000\ndata 8\ncommit%02d\n", i,
			1700000000+i*3600, i)
		if i > 1 {
			fmt.Fprintf(&in, "from :%d\n", i-1)
		}
		fmt.Fprintf(&in, "M 100644 inline file%02d\ndata 8\ncontent\n\n", i)
		if i%5 == 0 {
			fmt.Fprintf(&in, "tag v%d\nfrom :%d\ntagger C <c@example.com> %d +0000\ndata 3\ntag\n", i, i, 1700000000+i*3600)
		}
	}
	repo.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet")
	repo.Git("branch", "old", "main~10")
	repo.Git("pack-refs", "--all")
	return repo
}

func blobs(t *testing.T) *gittest.Repo {
	repo := gittest.Init(t)
	var in strings.Builder
	state := uint64(1)
	noise := make([]byte, 300_000)
	for i := 1; i <= 10; i++ {
		for j := range noise { // xorshift: does not compress, the same everywhere
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			noise[j] = byte(state)
		}
		fmt.Fprintf(&in, "commit refs/heads/main\nmark :%d\ncommitter C <c@example.com> %d +0000\ndata 1\nx\n", i,
			1700000000+i)
		if i > 1 {
			fmt.Fprintf(&in, "from :%d\n", i-1)
		}
		fmt.Fprintf(&in, "M 100644 inline blob%d\ndata %d\n%s\n", i, len(noise), noise)
	}
	repo.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet")
	return repo
}

func long(t *testing.T) *gittest.Repo {
	repo := gittest.Init(t)
	var in strings.Builder
	for i := 1; i <= 3000; i++ {
		fmt.Fprintf(&in, "commit refs/heads/main\nmark :%d\ncommitter C <c@example.com> %d +0000\ndata 1\nx\n", i,
			1600000000+i)
		if i > 1 {
			fmt.Fprintf(&in, "from :%d\n", i-1)
		}
	}
	repo.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet")
	return repo
}
