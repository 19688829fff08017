package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const discoveryOf = "/info/refs?service=git-upload-pack"

// copyRepo copies a repository.
func copyRepo(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, at string) {
	t.Helper()
	if err := os.Symlink(target, at); err != nil {
		t.Fatal(err)
	}
}

// TestHostilePaths checks that no spelling of a path reaches anything but a repository below the root. No response
// contains the root (threats: path traversal, argument injection, newline or NUL).
func TestHostilePaths(t *testing.T) {
	t.Parallel()
	v := attack(t, "", func(root string) {
		good := filepath.Join(root, "good.git")
		copyRepo(t, good, filepath.Join(root, "../outside.git"))
		copyRepo(t, good, filepath.Join(root, "team/app.git"))
		copyRepo(t, good, filepath.Join(root, "team/app.git/modules/inner"))
		copyRepo(t, good, filepath.Join(root, "--upload-pack=x.git"))
		copyRepo(t, good, filepath.Join(root, "Upper.git"))
		copyRepo(t, good, filepath.Join(root, "é ü.git"))
		symlink(t, "team/app.git", filepath.Join(root, "inside.git"))
		symlink(t, "../outside.git", filepath.Join(root, "outside.git"))
		symlink(t, "..", filepath.Join(root, "up"))
		symlink(t, "/", filepath.Join(root, "slash"))
		symlink(t, "loop", filepath.Join(root, "loop"))
		symlink(t, ".", filepath.Join(root, "dot"))
		symlink(t, "../state", filepath.Join(root, "state"))
	})
	for path, status := range map[string]int{
		"/good":                                  200,
		"/good.git":                              200,
		"//good":                                 200,
		"/good.git/":                             200,
		"/inside":                                200,
		"/dot/good":                              200,
		"/dot/dot/dot/good":                      200,
		"/--upload-pack=x":                       200,
		"/Upper":                                 200,
		"/%C3%A9%20%C3%BC":                       200,
		"/%67%6f%6f%64":                          200,
		"/good/.git":                             404,
		"/good.git.git":                          200,
		"/good.git/.git":                         404,
		"/good.git/objects":                      404,
		"/good.git/refs/..":                      404,
		"/good.git/objects/..":                   404,
		"/team/app.git/modules/inner":            404,
		"/inside/modules/inner":                  404,
		"/team//app.git":                         404,
		"/team/./app.git":                        404,
		"/team/../good":                          404,
		"/../outside":                            404,
		"/../outside.git":                        404,
		"/..//outside.git":                       404,
		"/...//outside.git":                      404,
		"/%2e%2e/outside":                        404,
		"/%2E%2E%2Foutside":                      404,
		"/%252e%252e/outside":                    404,
		"/%252e%252e%252foutside":                404,
		"/..%252foutside":                        404,
		"/..%c0%afoutside":                       404,
		"/%c0%ae%c0%ae/outside":                  404,
		"/%uff0e%uff0e/outside":                  400,
		"/\xff\xfe":                              404,
		"/%ff%fe%00":                             404,
		"/%ef%bc%8e%ef%bc%8e/outside":            404,
		`/..\outside`:                            404,
		"/..%5coutside":                          404,
		"/good%5c..%5c..%5coutside":              404,
		"/good%00":                               404,
		"/good%00.git":                           404,
		"/good.git%0a":                           404,
		"/good%0d%0aX-Injected:%20yes":           404,
		"/good%09":                               404,
		"/good%7f":                               404,
		"/good%20":                               404,
		"/good.":                                 404,
		"/good.git.":                             404,
		"/good::$DATA":                           404,
		"/good;x":                                404,
		"/GOOD":                                  404,
		"/upper":                                 404,
		"/good.GIT":                              404,
		"/outside":                               404,
		"/outside.git":                           404,
		"/up/outside":                            404,
		"/up/state":                              404,
		"/slash/etc":                             404,
		"/loop":                                  404,
		"/loop/good":                             404,
		"/state":                                 404,
		"/state/scratch/sha1.git":                404,
		"/state/scratch/sha1":                    404,
		"/-/good":                                404,
		"/%2d/good":                              404,
		"/.":                                     404,
		"/..":                                    404,
		"/.git":                                  404,
		"/~root":                                 404,
		"/etc/passwd":                            404,
		"/C:/good":                               404,
		"/file:///etc":                           404,
		"/$(id)":                                 404,
		"/`id`":                                  404,
		"/{good}":                                404,
		"/good?x=":                               200, // the page of the repository
		"/" + strings.Repeat("a", 255):           404,
		"/" + strings.Repeat("a", 900):           404,
		"/" + strings.Repeat("%2e", 5000):        404,
		"/" + strings.Repeat("a/", 511) + "a":    404,
		"/" + strings.Repeat("a/", 10_000) + "a": 404,
		"/" + strings.Repeat("../", 300) + "etc": 404,
		"/good" + strings.Repeat("/", 1000):      200,
		"/" + strings.Repeat("dot/", 200) + "good": 404,
		"/" + strings.Repeat("é", 400) + "/x":      404,
	} {
		a := v.get(path+discoveryOf, "paths")
		if a.status != status || a.err != nil {
			t.Errorf("%.100q: %d (%v) %.200q, want %d", path, a.status, a.err, a.body, status)
		}
		if strings.Contains(a.body, filepath.Dir(v.root)) {
			t.Errorf("%.100q: got a body with the root of the repositories: %q", path, a.body)
		}
		if len(a.body) > 1200 && !strings.Contains(path, "?") || a.header.Get("X-Injected") != "" {
			t.Errorf("%.100q: got %v %q, want at most 1200 bytes and no header X-Injected", path, a.header, a.body)
		}
		if !strings.Contains(path, "?") { // the same for what a session is asked for
			b := v.send(strings.NewReader(strings.Replace(fetchHead("PATH", "paths",
				fmt.Sprintf("Content-Length: %d", len(lsAll))), "/PATH", path, 1) + string(lsAll)))
			if b.status != status || (status == http.StatusOK) != strings.Contains(b.body, "refs/heads/main") ||
				strings.Contains(b.body, filepath.Dir(v.root)) {
				t.Errorf("%.100q: a session has %d (%v) %.200q, want %d", path, b.status, b.err, b.body, status)
			}
		}
	}
	for query, status := range map[string]int{
		"?service=git-upload-pack%00":                             403,
		"?service=git-upload-pack%0a":                             403,
		"?service=git-upload-pack;x":                              400,
		"?service=git-upload-pack&service=git-receive-pack":       200,
		"?service=git-receive-pack&service=git-upload-pack":       403,
		"?service=--upload-pack":                                  403,
		"?service=git-upload-pack&x=" + strings.Repeat("x", 9000): 200,
		"?" + strings.Repeat("service=&", 5000):                   403,
		"?service=upload-pack":                                    403,
		"?service=git-upload-archive":                             403,
		"?service=../../bin/sh":                                   403,
		"":                                                        403,
	} {
		if a := v.get("/good/info/refs"+query, "queries"); a.status != status || strings.Contains(a.body, "\x00") {
			t.Errorf("%.100q: %d %q, want %d", query, a.status, a.body, status)
		}
	}
	v.unharmed(150 << 20)
}

// TestHostileLinks: a link that is swapped while it is served, between a repository below the root and one outside,
// never shows the one outside.
func TestHostileLinks(t *testing.T) {
	t.Parallel()
	v := attack(t, "", func(root string) {
		copyRepo(t, filepath.Join(root, "good.git"), filepath.Join(root, "../secret.git"))
		symlink(t, "good.git", filepath.Join(root, "swapped.git"))
		symlink(t, filepath.Join(root, "../secret.git"), filepath.Join(root, "to-secret"))
		symlink(t, "good.git", filepath.Join(root, "to-good"))
	})
	secret := filepath.Join(v.root, "../secret.git")
	if err := os.WriteFile(filepath.Join(secret, "refs/heads/secret"), []byte(v.idOf("good", "main")+"\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			for _, target := range []string{filepath.Join(v.root, "../secret.git"), "good.git"} {
				next := filepath.Join(v.root, "next")
				_ = os.Symlink(target, next)
				_ = os.Rename(next, filepath.Join(v.root, "swapped.git"))
			}
		}
	}()
	statuses := [2]atomic.Int64{}
	parallel(4, func(int) {
		for range 200 {
			switch a := v.post("swapped", "swapped", lsAll); {
			case strings.Contains(a.body, "refs/heads/secret"):
				t.Errorf("a repository outside the root is shown: %q", a.body)
			case a.status == http.StatusOK && strings.Contains(a.body, "refs/heads/main"):
				statuses[0].Add(1)
			case a.status == http.StatusNotFound:
				statuses[1].Add(1)
			default:
				t.Errorf("%d (%v) %q", a.status, a.err, a.body)
			}
		}
	})
	stop.Store(true)
	<-done
	t.Logf("%d answers, %d refusals", statuses[0].Load(), statuses[1].Load())
	v.unharmed(150 << 20)
}
