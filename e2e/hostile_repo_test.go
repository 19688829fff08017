package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// write makes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func fifo(t *testing.T, path string) {
	t.Helper()
	_ = os.Remove(path)
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
}

func socket(t *testing.T, path string) {
	t.Helper()
	_ = os.Remove(path)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	dir, err := os.Open(filepath.Dir(path)) // the path itself may be too long for an address
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(),
		filepath.Base(path))}); err != nil {
		t.Fatal(err)
	}
}

// programs is configuration that makes git run a program, somewhere; PROGRAM is it.
const programs = `
[core]
	repositoryFormatVersion = 1
	bare = true
	fsmonitor = PROGRAM
	hooksPath = HOOKS
	alternateRefsCommand = PROGRAM
	alternateRefsPrefixes = refs/
	sshCommand = PROGRAM
	gitProxy = PROGRAM
	askPass = PROGRAM
	editor = PROGRAM
	pager = PROGRAM
	attributesFile = PROGRAM
	worktree = /
[extensions]
	partialClone = origin
[remote "origin"]
	url = ext::PROGRAM
	uploadpack = PROGRAM
	promisor = true
	partialCloneFilter = blob:none
	vcs = PROGRAM
[protocol]
	allow = always
[protocol "ext"]
	allow = always
[uploadpack]
	packObjectsHook = PROGRAM
	allowFilter = true
	allowAnySHA1InWant = true
[receive]
	fsckObjects = false
[gpg]
	program = PROGRAM
[gpg "ssh"]
	program = PROGRAM
	defaultKeyCommand = PROGRAM
[filter "x"]
	clean = PROGRAM
	smudge = PROGRAM
	process = PROGRAM
[diff]
	external = PROGRAM
[diff "x"]
	command = PROGRAM
	textconv = PROGRAM
[merge "x"]
	driver = PROGRAM
[credential]
	helper = PROGRAM
[alias]
	pack-objects = !PROGRAM
	upload-pack = !PROGRAM
[pack]
	packSizeLimit = 1
	writeBitmaps = true
[safe]
	directory = *
[trace2]
	normalTarget = PROGRAM.trace
	eventTarget = PROGRAM.trace
[url "ext::PROGRAM"]
	insteadOf = https://
`

// hostileConfig writes that configuration to a repository, with a program and hooks that leave a marker.
func hostileConfig(t *testing.T, dir, place string) {
	t.Helper()
	program := filepath.Join(place, "program")
	write(t, program, "#!/bin/sh\n: >>'"+filepath.Join(place, "ran")+"'\nexec \"$@\"\n")
	hooks := filepath.Join(place, "hooks")
	for _, hook := range []string{
		"post-upload-pack", "pre-upload-pack", "upload-pack", "post-checkout", "post-index-change", "reference-transaction",
		"fsmonitor-watchman", "pre-auto-gc",
	} {
		for _, at := range []string{filepath.Join(hooks, hook), filepath.Join(dir, "hooks", hook)} {
			write(t, at, "#!/bin/sh\n: >>'"+filepath.Join(place, "ran")+"'\n")
			_ = os.Chmod(at, 0o755)
		}
	}
	_ = os.Chmod(program, 0o755)
	write(t, filepath.Join(dir, "config"), strings.NewReplacer("PROGRAM", program, "HOOKS", hooks).Replace(programs))
	write(t, filepath.Join(dir, "info/attributes"),
		"* filter=x diff=x merge=x export-subst working-tree-encoding=UTF-16\n"+strings.Repeat("a", 3<<20)+" x\n")
	write(t, filepath.Join(dir, "info/grafts"), strings.Repeat("0", 40)+"\n")
}

// TestHostileConfig checks that no program runs because of a repository's configuration, hooks or attributes, or the
// server's environment. A repository that lacks objects, as a partial clone does, does not fetch them (threats:
// configuration or hooks, attributes).
func TestHostileConfig(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	program := filepath.Join(place, "program")
	env := []string{
		"GIT_DIR=" + place, "GIT_WORK_TREE=/", "GIT_SSH_COMMAND=" + program, "GIT_SSH=" + program,
		"GIT_PROXY_COMMAND=" + program,
		"GIT_ASKPASS=" + program, "SSH_ASKPASS=" + program, "GIT_EXTERNAL_DIFF=" + program, "GIT_EDITOR=" + program,
		"GIT_PAGER=" + program,
		"GIT_EXEC_PATH=" + place, "GIT_TEMPLATE_DIR=" + place, "GIT_TRACE=" + filepath.Join(place, "ran"),
		"GIT_TRACE2=" + filepath.Join(place, "ran"),
		"GIT_TRACE2_EVENT=" + filepath.Join(place, "ran"), "GIT_TRACE_PACKET=" + filepath.Join(place, "ran"),
		"GIT_CONFIG_GLOBAL=" + filepath.Join(place, "gitconfig"),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=uploadpack.packObjectsHook", "GIT_CONFIG_VALUE_0=" + program,
		"GIT_CONFIG_PARAMETERS='core.fsmonitor=" + program + "'", "GIT_ALLOW_PROTOCOL=ext", "GIT_OBJECT_DIRECTORY=" + place,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + place, "GIT_INDEX_FILE=" + place, "GIT_NAMESPACE=x",
		"GIT_SHALLOW_FILE=" + program, "GIT_GRAFT_FILE=" + program,
		"GIT_REPLACE_REF_BASE=refs/heads/", "GIT_CEILING_DIRECTORIES=/", "GIT_QUARANTINE_PATH=" + place,
		"GIT_PROTOCOL=version=1", "GIT_DEFAULT_HASH=sha256",
		"LD_PRELOAD=", "HTTP_PROXY=http://127.0.0.1:1", "XDG_CONFIG_HOME=" + place, "PAGER=" + program, "EDITOR=" + program,
	}
	write(t, filepath.Join(place, "gitconfig"),
		"[uploadpack]\n\tpackObjectsHook = "+program+"\n[core]\n\tfsmonitor = "+program+"\n")
	v := attackIn(t, env, "", func(root string) {
		good := filepath.Join(root, "good.git")
		copyRepo(t, good, filepath.Join(root, "evil.git"))
		hostileConfig(t, filepath.Join(root, "evil.git"), place)
		gittest.At(t, good).Git("config", "uploadpack.allowFilter", "true")
		gittest.Run(t, root, "", "clone", "--quiet", "--bare", "--filter=blob:none", "file://"+good, "partial.git")
		gittest.At(t, good).Git("config", "--unset", "uploadpack.allowFilter")
		hostileConfig(t, filepath.Join(root, "partial.git"), place)
	})
	for _, variant := range [][]string{nil, {"--depth=1"}, {"--filter=blob:none", "--bare"},
		{"--no-tags", "--single-branch"}} {
		dir := filepath.Join(t.TempDir(), "clone")
		gittest.Run(t, "", "", append(append([]string{"clone", "--quiet"}, variant...), v.http+"/evil", dir)...)
	}
	v.serves("evil")
	// The objects of the partial clone are served. A missing object is an error with a clear message.
	gittest.Run(t, "", "", "clone", "--quiet", "--bare", "--filter=blob:none", v.http+"/partial",
		filepath.Join(t.TempDir(), "clone"))
	a := v.post("partial", "partial", fetching("want "+v.idOf("good", "main"), "done"))
	if !strings.Contains(a.body, "ERR ") && !strings.Contains(a.body, "\x03") {
		t.Errorf("a clone of a partial clone: %d (%v) %.300q", a.status, a.err, a.body)
	}
	if r := v.record("partial"); r.Result == "ok" || r.Error == "" {
		t.Errorf("the log says of it: %+v", r)
	}
	blob := strings.Fields(gittest.Run(t, filepath.Join(v.root, "good.git"), "", "ls-tree", "main"))[2]
	v.wantsError("missing", v.post("partial", "missing", fetching("want "+blob, "done")), "not our ref")
	if _, err := os.Lstat(filepath.Join(place, "ran")); err == nil {
		t.Error("a program of the repository's configuration ran")
	}
	v.errorsLogged = true
	v.unharmed(150 << 20)
}

// TestHostileConfigFiles: configuration that is damaged, huge, no file, or leads elsewhere is refused with an error
// that shows nothing of it; the other repositories do not notice.
func TestHostileConfigFiles(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	v.errorsLogged = true
	write(t, filepath.Join(v.root, "../secret"), "[core]\nsecret = hunter2\nhunter2\nx\x00\n")
	const format = "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\t"
	for name, test := range map[string]struct {
		text   string
		status int
	}{
		"empty":            {"", 200},
		"not-closed":       {"[core", 500},
		"NUL":              {"[core]\n\tbare = true\x00\n", 500},
		"huge":             {strings.Repeat("# comment\n", 200_000), 500},
		"large":            {strings.Repeat("[a]\nb = c\n", 100_000), 200},
		"long-line":        {"[a]\nb = " + strings.Repeat("x", 1_000_000) + "\n", 200},
		"many-rules":       {"[transfer]\n" + strings.Repeat("hideRefs = refs/none\n", 40_000), 200},
		"version-99":       {"[core]\n\trepositoryFormatVersion = 99\n", 503},
		"version-none":     {"[core]\n\trepositoryFormatVersion = \n", 503},
		"new-extension":    {format + "new = true\n", 503},
		"object-format":    {format + "objectFormat = md5\n", 503},
		"ref-storage":      {format + "refStorage = sqlite\n", 503},
		"include":          {"[include]\n\tpath = ../../secret\n", 503},
		"includeIf":        {"[includeIf \"gitdir:**\"]\n\tpath = /etc/passwd\n", 503},
		"include-worktree": {format + "worktreeConfig = true\n", 200},
		"worktree":         {"[core]\n\tbare = false\n\tworktree = /etc\n", 200},
		"off":              {"[http]\n\tuploadpack = false\n", 403},
		"perhaps":          {"[http]\n\tuploadpack = perhaps\n", 500},
	} {
		copyRepo(t, filepath.Join(v.root, "good.git"), filepath.Join(v.root, name+".git"))
		write(t, filepath.Join(v.root, name+".git/config"), test.text)
		if a := v.get("/"+name+discoveryOf, name); a.status != test.status || a.err != nil ||
			strings.Contains(a.body, v.root) {
			t.Errorf("%s: %d (%v) %q, want %d", name, a.status, a.err, a.body, test.status)
		}
		if r := v.record(name); test.status != 200 && r.Error == "" {
			t.Errorf("%s: the log says %+v", name, r)
		}
	}
	for name, make := range map[string]func(path string){
		"pipe":      func(path string) { fifo(t, path) },
		"socket":    func(path string) { socket(t, path) },
		"directory": func(path string) { _ = os.Remove(path); _ = os.Mkdir(path, 0o755) },
		"zeros":     func(path string) { _ = os.Remove(path); symlink(t, "/dev/zero", path) },
		"tty":       func(path string) { _ = os.Remove(path); symlink(t, "/dev/tty", path) },
		"passwd":    func(path string) { _ = os.Remove(path); symlink(t, "../../secret", path) },
		"loop":      func(path string) { _ = os.Remove(path); symlink(t, "config", path) },
	} {
		name := "special-" + name
		copyRepo(t, filepath.Join(v.root, "good.git"), filepath.Join(v.root, name+".git"))
		make(filepath.Join(v.root, name+".git/config"))
		a := v.get("/"+name+discoveryOf, name)
		outside := a.status == http.StatusForbidden && strings.Contains(a.body, "outside the served root")
		if a.status < 500 && !outside || a.err != nil || strings.Contains(a.body, v.root) ||
			strings.Contains(a.body, "hunter2") {
			t.Errorf("%s: %d (%v) %q, want an error", name, a.status, a.err, a.body)
		}
		if r := v.record(name); r.Error == "" || strings.Contains(r.Error, "hunter2") {
			t.Errorf("%s: the log says %+v", name, r)
		}
	}
	v.unharmed(150 << 20)
}

// TestHostileAlternates has alternates that form cycles, leave the root or are not paths (threats: alternates and links
// inside objects).
func TestHostileAlternates(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // http-alternates are for dumb clients: the server must not connect
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			t.Error("the server asked for http-alternates")
			conn.Close()
		}
	}()
	v := attack(t, "", func(root string) {
		copyRepo(t, filepath.Join(root, "good.git"), filepath.Join(root, "../outside.git"))
		symlink(t, "../outside.git", filepath.Join(root, "link"))
		symlink(t, "loop", filepath.Join(root, "loop"))
	})
	v.errorsLogged = true
	good := filepath.Join(v.root, "good.git")
	outside := filepath.Join(v.root, "../outside.git")
	if real, err := filepath.EvalSymlinks(outside); err == nil {
		outside = real
	}
	secret := gittest.At(t, outside).Commit("what is only outside").String()
	for name, test := range map[string]struct {
		alternates string
		status     int // 0: as git does it
	}{
		"self":              {".", 200},
		"itself":            {filepath.Join(v.root, "itself.git/objects"), 200},
		"absolute-inside":   {filepath.Join(good, "objects"), 200},
		"relative-inside":   {"../../good.git/objects", 200},
		"dots-inside":       {filepath.Join(good, "refs") + "/../objects", 200},
		"absolute-outside":  {filepath.Join(outside, "objects"), 403},
		"relative-escape":   {"../../../outside.git/objects", 403},
		"escape-and-back":   {"../../../../../../../../../../../.." + good + "/objects", 200},
		"link-outside":      {"../../link/objects", 403},
		"root":              {"/", 403},
		"etc":               {"/etc", 403},
		"proc":              {"/proc/self/root", 403},
		"not-there":         {"../../nothing.git/objects", 200},
		"outside-not-there": {"/nothing/at/all", 403},
		"file":              {"../../good.git/HEAD", 200},
		"comment":           {"# " + outside + "/objects\n", 200},
		"quoted-escape":     {`"../../../outside.git/objects"`, 403},
		"octal-escape":      {`"\056\056/../../outside.git/objects"`, 403},
		"NUL":               {"../../good.git/objects\x00/../../../outside.git/objects", 0},
		"carriage-return":   {"../../good.git/objects\r", 200},
		"many":              {strings.Repeat("../../good.git/objects\n", 20_000), 200},
		"many-not-there":    {strings.Repeat("../../nothing.git/objects\n", 10_000), 200},
		"huge":              {strings.Repeat("../../good.git/objects\n", 100_000), 500},
		"loop":              {"../../loop/objects", 200},
		"long":              {strings.Repeat("a", 500_000), 200},
	} {
		copyRepo(t, good, filepath.Join(v.root, name+".git"))
		write(t, filepath.Join(v.root, name+".git/objects/info/alternates"), test.alternates)
		write(t, filepath.Join(v.root, name+".git/objects/info/http-alternates"),
			"http://"+listener.Addr().String()+"/x.git/objects\n")
		v.checkAlternates(name, test.status, secret)
	}
	pair := func(a, b string) {
		copyRepo(t, good, filepath.Join(v.root, a+".git"))
		write(t, filepath.Join(v.root, a+".git/objects/info/alternates"), "../../"+b+".git/objects\n")
	}
	pair("one", "two")
	pair("two", "one")
	v.checkAlternates("one", 200, secret)
	for i := range 12 {
		pair(fmt.Sprint("chain", i), fmt.Sprint("chain", i+1))
	}
	copyRepo(t, good, filepath.Join(v.root, "chain12.git"))
	v.checkAlternates("chain0", 0, secret)
	v.checkAlternates("chain9", 200, secret)
	pair("nested-escape", "relative-escape")
	v.checkAlternates("nested-escape", 403, secret)
	for name, make := range map[string]func(path string){
		"pipe":      func(path string) { fifo(t, path) },
		"socket":    func(path string) { socket(t, path) },
		"directory": func(path string) { _ = os.Mkdir(path, 0o755) },
		"zeros":     func(path string) { symlink(t, "/dev/zero", path) },
	} {
		name := "special-" + name
		copyRepo(t, good, filepath.Join(v.root, name+".git"))
		make(filepath.Join(v.root, name+".git/objects/info/alternates"))
		v.checkAlternates(name, 0, secret)
	}
	v.unharmed(150 << 20)
}

// checkAlternates asks a repository for its pack, and for a commit that only a repository outside the root has.
func (v *victim) checkAlternates(name string, status int, secret string) {
	v.t.Helper()
	a := v.post(name, name, fetching("want "+v.idOf("good", "main"), "done"))
	pack := strings.Contains(a.body, "packfile\n")
	switch {
	case a.err != nil || a.status == 0 || strings.Contains(a.body, v.root) || !pack && a.status == 200 &&
		!strings.Contains(a.body, "ERR "):
		v.t.Errorf("%s: %d (%v) %.300q", name, a.status, a.err, a.body)
	case status == 200 && !pack, status == http.StatusForbidden &&
		(pack || !strings.Contains(a.body, "outside the served root")):
		v.t.Errorf("%s: %d %.300q, want %d", name, a.status, a.body, status)
	case status == 500 && pack:
		v.t.Errorf("%s: a pack, want an error", name)
	}
	if testing.Verbose() && !pack {
		v.t.Logf("%s: %d %.200q", name, a.status, a.body)
	}
	if r := v.record(name); !pack && r.Error == "" {
		v.t.Errorf("%s: the log says %+v", name, r)
	}
	b := v.post(name, name, fetching("want "+secret, "done"))
	if strings.Contains(b.body, "packfile\n") {
		v.t.Errorf("%s: an object outside the root is served", name)
	}
}

// TestHostileOwner serves a repository that belongs to another user. Git refuses one (safe.directory), because its
// content could make git run programs. Here it cannot, as TestHostileConfig shows.
func TestHostileOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: only root can give a repository to somebody else")
	}
	v := attack(t, "", func(root string) {
		copyRepo(t, filepath.Join(root, "good.git"), filepath.Join(root, "theirs.git"))
		err := filepath.WalkDir(filepath.Join(root, "theirs.git"), func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, 54321, 54321)
		})
		if err != nil {
			t.Skipf("NOT TESTED: %v", err)
		}
	})
	gittest.Run(t, "", "", "clone", "--quiet", v.http+"/theirs", filepath.Join(t.TempDir(), "clone"))
	v.unharmed(150 << 20)
}

// TestHostileReading checks that files which the server's user may not read are not served, and that the response does
// not mention them.
func TestHostileReading(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("NOT TESTED: root may read everything")
	}
	v := attack(t, "", nil)
	v.errorsLogged = true
	for _, place := range []string{".", "objects", "refs", "HEAD", "config", "packed-refs", "objects/pack"} {
		name := "closed-" + strings.ReplaceAll(place, "/", "-")
		dir := filepath.Join(v.root, name+".git")
		copyRepo(t, filepath.Join(v.root, "good.git"), dir)
		path := filepath.Join(dir, place)
		if err := os.Chmod(path, 0); err != nil {
			continue // not there
		}
		t.Cleanup(func() { _ = os.Chmod(path, 0o755) })
		a := v.post(name, name, fetching("want "+v.idOf("good", "main"), "done"))
		if _, ok := packIn(a); a.status == 0 || ok && place != "HEAD" && place != "refs" || strings.Contains(a.body, v.root) {
			t.Errorf("%s: %d (%v) %.300q", name, a.status, a.err, a.body)
		}
	}
	v.unharmed(150 << 20)
}
