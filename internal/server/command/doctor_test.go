package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// doctored runs doctor with --json, and returns what it found of repositories, the server, certificates and the
// configuration: the rest depends on the machine.
func doctored(t *testing.T, args ...string) (code int, kinds []string) {
	t.Helper()
	code, out, errs := runMain(append([]string{"doctor", "--json"}, args...)...)
	var report struct {
		Good     bool
		Facts    map[string]string
		Findings []doctor.Finding
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	if report.Good != (code == 0) {
		t.Errorf("exit code %d, good: %v", code, report.Good)
	}
	for _, f := range report.Findings {
		switch f.Group {
		case doctor.GroupRepositories, doctor.GroupServer, doctor.GroupCertificates, doctor.GroupConfiguration:
			kinds = append(kinds, f.Kind)
		}
	}
	return code, kinds
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	r := gittest.InitAt(t, filepath.Join(root, "team/app.git"))
	r.Git("update-ref", "refs/heads/main", r.Commit("x").String())
	for _, where := range []string{"alone", "beside a server"} {
		if where != "alone" {
			startServe(t, "--root", root)
		}
		before := filesBelow(t, root)
		if _, kinds := doctored(t, root); len(kinds) > 0 {
			t.Errorf("%s, nothing is wrong: %q", where, kinds)
		}
		if after := filesBelow(t, root); where == "alone" && !slices.Equal(before, after) {
			t.Errorf("doctor changed\n%q\nto\n%q", before, after)
		}
	}
	used := filepath.Join(root, ".packhorse", "tokens.used")
	if err := os.WriteFile(used, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, kinds := doctored(t, root); !slices.Equal(kinds, []string{"tokens"}) {
		t.Errorf("the tokens are lost: %q", kinds)
	}
	if err := os.Remove(used); err != nil {
		t.Fatal(err)
	}
	r.Git("symbolic-ref", "HEAD", "refs/heads/gone")
	if code, kinds := doctored(t, "--root", root); code != exitFailed || !slices.Equal(kinds, []string{"unborn-head"}) {
		t.Errorf("exit code %d: %q", code, kinds)
	}
	code, out, errs := runMain("doctor", root)
	want := "  problem  team/app.git: HEAD names refs/heads/gone, which does not exist"
	if code != exitFailed || !strings.Contains(out, want) ||
		!strings.Contains(out, "-> packhorse repo set-head team/app main --root "+root) ||
		!strings.Contains(errs, "there are problems") ||
		!strings.Contains(out, "which serves "+root) {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if code, _, errs := runMain("doctor"); code != exitUsage || !strings.Contains(errs, "packhorse doctor /srv/git") {
		t.Errorf("without a root: %d %s", code, errs)
	}
}

// TestDoctorFindsWhatIsNotServed checks that doctor names directories that look like repositories and are not served.
// It also names a state directory that a backup of the root does not have, and missing objects with --deep.
func TestDoctorFindsWhatIsNotServed(t *testing.T) {
	t.Parallel()
	root, state, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{"good.git", "a/no-head.git", "a/bad\nname.git"} {
		r := gittest.InitAt(t, filepath.Join(root, dir))
		r.Git("update-ref", "refs/heads/main", r.Commit("x").String())
	}
	outside := gittest.InitAt(t, filepath.Join(elsewhere, "x.git"))
	if err := errors.Join(os.Remove(filepath.Join(root, "a/no-head.git/HEAD")), os.Mkdir(root+"/objects", 0o755),
		os.Symlink(outside.Dir, filepath.Join(root, "link.git"))); err != nil {
		t.Fatal(err)
	}
	code, kinds := doctored(t, root, "--state", state)
	if want := []string{"state-elsewhere", "not-served", "not-served", "not-served"}; code != exitFailed ||
		!slices.Equal(kinds, want) {
		t.Errorf("exit code %d: %q, want %q", code, kinds, want)
	}
	_, out, _ := runMain("doctor", root)
	for _, want := range []string{"a/no-head.git: it looks like a repository", "link.git: it looks", "link to outside",
		"name.git: it looks", "its name cannot be"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	good := gittest.At(t, filepath.Join(root, "good.git"))
	tree := good.Git("rev-parse", "main^{tree}")
	if err := os.Remove(filepath.Join(good.Dir, "objects", tree[:2], tree[2:])); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{root}, {root, "--deep"}} {
		if _, kinds := doctored(t, args...); slices.Contains(kinds, "missing-objects") != (len(args) == 2) {
			t.Errorf("%q: %q", args, kinds)
		}
	}
}

func TestDoctorOfAConfiguration(t *testing.T) {
	t.Parallel()
	root, dir := t.TempDir(), t.TempDir()
	cert, key := makeCertificate(t, dir, -time.Hour)
	file := filepath.Join(dir, "packhorse.toml")
	text := fmt.Sprintf("root = %q\n[http]\ntls_cert = %q\ntls_key = %q\n[lanes]\ncold = -1\n[cache]\nmax_byte = 3\n",
		root, cert, key)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(root, ".packhorse")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "tokens"), []byte(`{"version": 1, "last": 0, "tokens": []}`),
		0o644); err != nil {
		t.Fatal(err)
	}
	code, kinds := doctored(t, "--config", file)
	if want := []string{"configuration", "configuration", "state-mode", "certificate"}; code != exitFailed ||
		!slices.Equal(kinds, want) {
		t.Errorf("exit code %d: %q, want %q", code, kinds, want)
	}
}

// TestDoctorOfARunningServer: doctor examines the configuration that the server was started with.
func TestDoctorOfARunningServer(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	if err := os.MkdirAll(filepath.Join(r.Dir, "hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Dir, "hooks", "update"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, kinds := doctored(t, root); !slices.Equal(kinds, []string{"hook-refuses-pushes"}) {
		t.Errorf("without a server defaults are assumed: %q", kinds)
	}
	file := filepath.Join(t.TempDir(), "packhorse.toml")
	if err := os.WriteFile(file, []byte("[push]\nrepository_hooks = \"run\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	startServe(t, "--root", root, "--config", file)
	if _, kinds := doctored(t, root); len(kinds) > 0 {
		t.Errorf("a server that runs hooks: got findings of the kinds %q, want none", kinds)
	}
	if err := os.Chmod(file, 0o602); err != nil {
		t.Fatal(err)
	}
	if _, kinds := doctored(t, root); !slices.Equal(kinds, []string{"hook-refuses-pushes"}) {
		t.Errorf("with a file that others may write defaults are assumed: %q", kinds)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, kinds := doctored(t, root); !slices.Equal(kinds, []string{"hook-refuses-pushes"}) {
		t.Errorf("with a file that is gone defaults are assumed: %q", kinds)
	}
}

// Doctor asks a running server for origins that get no requests, and for mirrors that fail.
func TestDoctorOfOrigins(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	root := socketDir(t)
	file := filepath.Join(t.TempDir(), "packhorse.toml")
	text := fmt.Sprintf("[[mirror]]\nfrom = \"http://%s/\"\nto = \"host\"\n", gone.Addr())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	startServe(t, "--root", root, "--config", file)
	s, err := statedir.Running(filepath.Join(root, ".packhorse"))
	if err != nil {
		t.Fatal(err)
	}
	gittest.WaitFor(t, "the server stops requests to the origin", func() bool {
		response, err := http.Get(s.HTTP + "/host/app/info/refs?service=git-upload-pack")
		if err == nil {
			response.Body.Close()
		}
		_, kinds := doctored(t, root)
		return slices.Contains(kinds, "origin-down")
	})

	state := socketDir(t)
	serveAdmin(t, state, fakeAdmin{
		internalv1.AdminWork_ADMIN_WORK_ORIGINS: {"": `[{"host":"a"},{"host":"b","error":"circuit breaker open"}]`},
		internalv1.AdminWork_ADMIN_WORK_MIRRORS: {
			"":  `{"mirrors":[{"path":"a/good"},{"path":"a/fails","error":"x"}],"next":"n"}`,
			"n": `{"mirrors":[{"path":"b/old","error":"y","stale":true},{"path":"c","error":"z","refused":true}]}`,
		},
	})
	report := &doctor.Report{}
	doctor.Origins(t.Context(), askerOf(config.AdminSocket(state)), true, report)
	var got []string
	for _, f := range report.Findings {
		got = append(got, fmt.Sprint(f.Severity, " ", f.Kind, " ", f.Subject))
	}
	want := []string{"problem origin-down b", "hint mirror-failing a/fails", "problem mirror-stale b/old"}
	if !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
}

// fakeAdmin has results by work and name.
type fakeAdmin map[internalv1.AdminWork]map[string]string

func (a fakeAdmin) Run(_ context.Context, request *connect.Request[internalv1.RunRequest],
	stream *connect.ServerStream[internalv1.RunResponse]) error {
	return stream.Send(&internalv1.RunResponse{Result: []byte(a[request.Msg.GetWork()][request.Msg.GetName()])})
}

// TestOldGit checks that a server does not start with an old git, and names the version that it needs.
func TestOldGit(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "git")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho git version 2.20.1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	code, _, errs := runMain("serve", "--root", root, "--git", program, "--http", "127.0.0.1:0", "--ops", "")
	if code != exitUsage || !strings.Contains(errs,
		"is git 2.20, and a server needs 2.36 or later; install a newer git, or name one with --git") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("it made %v (%v)", left, err)
	}
}

func TestTrustedFile(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, link := filepath.Join(dir, "below", "file"), filepath.Join(dir, "link")
	err = errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600), os.Symlink("below/file", link))
	if err != nil {
		t.Fatal(err)
	}
	is := func(what string, want bool) {
		t.Helper()
		if got, err := statedir.TrustedFile(link); (err == nil) != want || want && got != file {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	is("at first", true)
	for path, mode := range map[string]os.FileMode{file: 0o602, filepath.Dir(file): 0o702} {
		before, err := os.Stat(path)
		if err := errors.Join(err, os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		is(fmt.Sprintf("%s with mode %o", path, mode), false)
		if err := os.Chmod(path, before.Mode()); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			continue
		}
		if err := os.Chown(path, 12345, -1); err != nil {
			t.Fatal(err)
		}
		is(path+" of another user", false)
		if err := os.Chown(path, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	is("in the end", true)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	is("gone", false)
}
