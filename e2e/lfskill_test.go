package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// lfsContent is the content of an object of Git LFS.
type lfsContent []byte

func (c lfsContent) oid() string {
	sum := sha256.Sum256(c)
	return hex.EncodeToString(sum[:])
}

// lfsAction is how an object is transferred. Without Href nothing has to be done.
type lfsAction struct {
	Href   string
	Header map[string]string
}

// lfsAction asks a server how to transfer an object of a repository.
func (s *storeServer) lfsAction(repo, operation string, c lfsContent) (lfsAction, error) {
	body := fmt.Sprintf(`{"operation":%q,"objects":[{"oid":%q,"size":%d}]}`, operation, c.oid(), len(c))
	text, err := s.lfsRequest("POST", s.url(repo)+"/info/lfs/objects/batch", nil, strings.NewReader(body))
	var answer struct {
		Objects []struct {
			Actions map[string]lfsAction
			Error   *struct{ Message string }
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	switch {
	case err != nil:
		return lfsAction{}, err
	case len(answer.Objects) != 1 || answer.Objects[0].Error != nil:
		return lfsAction{}, fmt.Errorf("batch: %s", text)
	}
	return answer.Objects[0].Actions[operation], nil
}

// lfsRequest returns the body of the answer to a request of Git LFS, which has to succeed.
func (s *storeServer) lfsRequest(method, to string, header map[string]string, body io.Reader) ([]byte, error) {
	request, err := http.NewRequest(method, to, body)
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth("alice", s.token)
	request.Header.Set("Accept", "application/vnd.git-lfs+json")
	if method == "POST" {
		request.Header.Set("Content-Type", "application/vnd.git-lfs+json")
	}
	for key, value := range header {
		request.Header.Set(key, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, to, response.Status, text)
	}
	return text, err
}

// lfsUpload uploads an object. Without an error the server has it.
func (s *storeServer) lfsUpload(repo string, c lfsContent) error {
	action, err := s.lfsAction(repo, "upload", c)
	if err == nil && action.Href != "" {
		_, err = s.lfsRequest("PUT", action.Href, action.Header, bytes.NewReader(c))
	}
	return err
}

// lfsDownload returns an error unless the server sends an object.
func (s *storeServer) lfsDownload(repo string, c lfsContent) error {
	action, err := s.lfsAction(repo, "download", c)
	if err != nil {
		return err
	}
	got, err := s.lfsRequest("GET", action.Href, action.Header, nil)
	if err == nil && !bytes.Equal(got, c) {
		err = fmt.Errorf("object %s: got %d other bytes, want %d", c.oid(), len(got), len(c))
	}
	return err
}

// hasLocalLFS reports whether a server has a local copy of an object of any repository.
func (s *storeServer) hasLocalLFS(c lfsContent) bool {
	id := c.oid()
	found, err := filepath.Glob(filepath.Join(s.root(), "*.git/lfs/objects", id[:2], id[2:4], id))
	return err == nil && len(found) > 0
}

// TestLFSKillInStore kills a server of a store with SIGKILL while objects are uploaded: at any time, and when a local
// copy is complete. Another server, which has no copies, sends every object whose upload had succeeded. All others can
// be uploaded again.
func TestLFSKillInStore(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	needGitLFS(t)
	const (
		repo    = "team/media"
		rounds  = 6
		uploads = 4
	)
	w := newStoreWorld(t)
	a, b := w.serve("a", ""), w.serve("b", "")
	runPackhorse(t, "", "repo", "create", repo, "--config", a.config())
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	content := func() lfsContent {
		c := make(lfsContent, 1<<20+random.IntN(3<<20))
		for i := range c {
			c[i] = byte(random.Uint32())
		}
		return c
	}
	begin := time.Now()
	all := []lfsContent{content()}
	if err := a.lfsUpload(repo, all[0]); err != nil {
		t.Fatal(err)
	}
	took, stored, unstored := time.Since(begin), 0, 0
	for round := range rounds {
		var contents [uploads]lfsContent
		var results [uploads]error
		var running sync.WaitGroup
		for i := range contents {
			contents[i] = content()
		}
		for i, c := range contents {
			running.Go(func() { results[i] = a.lfsUpload(repo, c) })
		}
		if round%2 == 0 {
			time.Sleep(time.Duration(random.Int64N(int64(uploads * took))))
		} else {
			for end := time.Now().Add(time.Minute); !a.hasLocalLFS(contents[0]) && time.Now().Before(end); {
				time.Sleep(time.Millisecond / 4)
			}
		}
		a.kill()
		running.Wait()
		if results[0] != nil && a.hasLocalLFS(contents[0]) {
			unstored++
		}
		a.start()
		for i, c := range contents {
			if results[i] == nil {
				stored++
				if err := errors.Join(b.lfsDownload(repo, c), a.lfsDownload(repo, c)); err != nil {
					t.Errorf("round %d: an object whose upload had succeeded: %v", round, err)
				}
				continue
			}
			if err := a.lfsUpload(repo, c); err != nil {
				t.Errorf("round %d: the second upload after %v: %v", round, results[i], err)
			} else if err := b.lfsDownload(repo, c); err != nil {
				t.Errorf("round %d: an object that was uploaded again: %v", round, err)
			}
		}
		all = append(all, contents[:]...)
	}
	t.Logf("%d of %d uploads had succeeded, and %d times there was a local copy only", stored, rounds*uploads, unstored)

	work, clone := filepath.Join(w.dir, "work"), filepath.Join(w.dir, "clone")
	lfs := func(dir string, args ...string) string {
		t.Helper()
		return w.git(dir, append([]string{"-c", "filter.lfs.clean=git-lfs clean -- %f",
			"-c", "filter.lfs.smudge=git-lfs smudge -- %f", "-c", "filter.lfs.required=true"}, args...)...)
	}
	w.git("", "clone", "-q", a.url(repo), work)
	w.git(work, "lfs", "install", "--local")
	w.git(work, "lfs", "track", "*.bin")
	for i, c := range all {
		if err := os.WriteFile(filepath.Join(work, fmt.Sprint(i, ".bin")), c, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.git(work, "add", ".")
	w.git(work, "commit", "-q", "-m", "all objects")
	w.git(work, "push", "-q", "origin", "HEAD:main")
	lfs("", "clone", "-q", "-b", "main", b.url(repo), clone)
	if out := w.git(clone, "lfs", "fsck"); !strings.Contains(out, "Git LFS fsck OK") {
		t.Errorf("git lfs fsck: got %s, want OK", out)
	}
	for i, c := range all {
		if got, err := os.ReadFile(filepath.Join(clone, fmt.Sprint(i, ".bin"))); err != nil || !bytes.Equal(got, c) {
			t.Errorf("file %d of the clone has %d bytes, %v, want %d", i, len(got), err, len(c))
		}
	}
	runPackhorse(t, "", "store", "check", "--deep", "--config", b.config())
}
