package e2e

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// The fixtures in previousDir were left by servers of the previous release, which is built from previousCommit. The
// flag -update makes them again: with the release at HEAD, or at the commit in PACKHORSE_PREVIOUS.
const (
	previousDir    = "testdata/previous"
	previousCommit = previousDir + "/commit"
)

var previous struct {
	sync.Once
	dir, problem string
}

// buildPrevious builds the programs of the previous release and returns their directory. It builds in this directory
// with the changed files replaced, so that unchanged packages come from Go's cache. Without the commit in the history
// the test is skipped, and fails if CI is set.
func buildPrevious(t *testing.T) string {
	t.Helper()
	previous.Do(func() {
		commit := os.Getenv("PACKHORSE_PREVIOUS")
		switch {
		case *update:
			commit = cmp.Or(commit, "HEAD")
		case commit == "":
			text, err := os.ReadFile(previousCommit)
			if err != nil {
				previous.problem = err.Error()
				return
			}
			commit = strings.TrimSpace(string(text))
		}
		previous.dir, previous.problem = buildCommit(commit)
	})
	if previous.problem != "" && os.Getenv("CI") != "" {
		t.Fatalf("the previous release cannot be built: %s", previous.problem)
	}
	if previous.problem != "" {
		t.Skipf("*** Upgrades are NOT tested: the previous release cannot be built: %s ***", previous.problem)
	}
	return previous.dir
}

func buildCommit(commit string) (dir, problem string) {
	root, err := filepath.Abs("..")
	if err != nil {
		return "", err.Error()
	}
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", root}, args...)...).CombinedOutput()
		if err != nil && problem == "" {
			problem = strings.TrimSpace(string(out)) + "; fetch the whole history (git fetch --unshallow), or renew the " +
				"fixture (docs/how-to/release.md)"
		}
		return string(out)
	}
	sources := []string{"--", "cmd", "internal", "client", "proto", "go.mod", "go.sum"}
	changed := git(append([]string{"diff", "-z", "--name-only", "--no-renames", commit}, sources...)...)
	added := git(append([]string{"ls-files", "-z", "--others", "--exclude-standard"}, sources...)...)
	before := git("ls-tree", "-r", "-z", "--name-only", commit)
	if problem != "" {
		return "", problem
	}
	dir = filepath.Join(binDir, "previous")
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for _, name := range strings.FieldsFunc(changed+added, func(r rune) bool { return r == 0 }) {
		old := ""
		if strings.Contains("\x00"+before, "\x00"+name+"\x00") {
			old = filepath.Join(dir, "source", name)
			text := git("show", commit+":"+name)
			if err := os.MkdirAll(filepath.Dir(old), 0o755); err != nil {
				return "", err.Error()
			}
			if err := os.WriteFile(old, []byte(text), 0o600); err != nil {
				return "", err.Error()
			}
		}
		overlay.Replace[filepath.Join(root, name)] = old
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err.Error()
	}
	text, err := json.Marshal(overlay)
	if err == nil {
		err = os.WriteFile(dir+".json", text, 0o600)
	}
	if err != nil || problem != "" {
		return "", cmp.Or(problem, "the overlay cannot be written")
	}
	build := exec.Command("go", append(buildFlags, "-overlay", dir+".json", "-o", dir+"/", "../cmd/packhorse",
		"../cmd/packhorse-search")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOGC=400")
	if out, err := build.CombinedOutput(); err != nil {
		return "", string(out)
	}
	return dir, ""
}

// placeholders pairs values of a process with the texts that stand for them in a fixture.
func (u *upgrade) placeholders(isPacked bool) *strings.Replacer {
	var pairs []string
	add := func(value, text string) {
		if isPacked {
			value, text = text, value
		}
		pairs = append(pairs, value, text)
	}
	for repo := range upgradeRepos { // the journal of pushes has paths in base64
		path := "/repos/team/" + repo + ".git"
		add(base64.StdEncoding.EncodeToString([]byte(u.dir+path)),
			base64.StdEncoding.EncodeToString([]byte("/fixture"+path)))
	}
	add(u.dir, "/fixture")
	add(u.hook.URL, "http://hook.fixture")
	add(u.origin.URL, "http://origin.fixture")
	if u.bucket != nil {
		add("http://"+u.bucket.Address, "http://store.fixture")
	}
	return strings.NewReplacer(pairs...)
}

// isOpaque reports whether a file of a fixture keeps its bytes: caches, indexes and packs can have any.
func isOpaque(name string) bool {
	return strings.HasPrefix(name, "state/cache/") || strings.HasPrefix(name, "state/search/") ||
		strings.Contains(name, "/objects/") || strings.Contains(name, "packs/")
}

// pack writes the directory of a stopped server, or the objects of its store, to a fixture: the file of a name.
func (u *upgrade) pack(file string) {
	u.Helper()
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		u.Fatal(err)
	}
	w, texts := tar.NewWriter(zip), u.placeholders(false)
	add := func(h *tar.Header, content []byte) {
		if !isOpaque(h.Name) {
			content = []byte(texts.Replace(string(content)))
		}
		h.Size, h.Format = int64(len(content)), tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			u.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			u.Fatal(err)
		}
	}
	links := map[uint64]string{}
	err = filepath.WalkDir(u.dir, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, u.dir+"/")
		if err != nil || path == u.dir {
			return err
		}
		if u.bucket != nil && name == "root" { // copies
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
		switch {
		case d.IsDir():
			h.Typeflag = tar.TypeDir
			add(h, nil)
		case info.Mode().IsRegular():
			stat := info.Sys().(*syscall.Stat_t)
			if first := links[stat.Ino]; stat.Nlink > 1 && first != "" {
				h.Typeflag, h.Linkname = tar.TypeLink, first
				add(h, nil)
				return nil
			}
			links[stat.Ino] = name
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			add(h, content)
		}
		return nil
	})
	if err == nil && u.bucket != nil {
		b := u.bucket.Bucket("git")
		err = bucket.Each(u.Context(), b, "", func(info bucket.Info) error {
			content, _, err := b.Get(u.Context(), info.Key, 1<<20)
			add(&tar.Header{Name: "bucket/" + info.Key, Mode: 0o600}, content)
			return err
		})
	}
	if err != nil {
		u.Fatal(err)
	}
	if err := w.Close(); err != nil {
		u.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		u.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(previousDir, file), b.Bytes(), 0o644); err != nil {
		u.Fatal(err)
	}
	u.Logf("%s has %d bytes", file, b.Len())
}

// unpack is the inverse of pack.
func (u *upgrade) unpack(file string) {
	u.Helper()
	packed, err := os.Open(filepath.Join(previousDir, file))
	if err != nil {
		u.Fatal(err)
	}
	defer packed.Close()
	zip, err := gzip.NewReader(packed)
	if err != nil {
		u.Fatal(err)
	}
	r, texts := tar.NewReader(zip), u.placeholders(true)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			u.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			u.Fatal(err)
		}
		if !isOpaque(h.Name) {
			content = []byte(texts.Replace(string(content)))
		}
		path := filepath.Join(u.dir, h.Name)
		if key, ok := strings.CutPrefix(h.Name, "bucket/"); ok {
			err = u.bucket.Bucket("git").Put(u.Context(), key, bytes.NewReader(content), int64(len(content)),
				sha256.Sum256(content))
		} else if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, fs.FileMode(h.Mode))
		} else if h.Typeflag == tar.TypeLink {
			err = os.Link(filepath.Join(u.dir, h.Linkname), path)
		} else {
			err = os.WriteFile(path, content, fs.FileMode(h.Mode))
		}
		if filepath.Base(h.Name) == "packhorse-pushed" { // its time is that of the last push; other files are new
			err = cmp.Or(err, os.Chtimes(path, h.ModTime, h.ModTime))
		}
		if err != nil {
			u.Fatal(err)
		}
	}
}
