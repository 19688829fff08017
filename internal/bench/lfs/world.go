package lfs

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/link"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// world has the servers of one part. They serve the repositories of one root.
type world struct {
	*options
	dir     string
	links   []*link.Link
	servers []*loadgen.Child
}

// prepare makes the repository app.git.
func (w *world) prepare(ctx context.Context) error {
	if err := os.MkdirAll(w.root(), 0o700); err != nil {
		return err
	}
	return gitload.Synthesize(ctx, w.repository(), 3, 2000)
}

// close ends the servers, those that were started last first.
func (w *world) close() error {
	var errs []error
	for i := range w.servers {
		errs = append(errs, w.servers[len(w.servers)-1-i].Stop())
	}
	for _, l := range w.links {
		l.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

func (w *world) root() string { return filepath.Join(w.dir, "repositories") }

func (w *world) repository() string { return filepath.Join(w.root(), "app.git") }

// object is the content of a file in LFS.
type object struct {
	oid  string
	size int64
}

// path returns the file of an object below a directory .git or a bare repository, in the layout of git-lfs.
func (o object) path(repository string) string {
	return filepath.Join(repository, "lfs", "objects", o.oid[:2], o.oid[2:4], o.oid)
}

// addObject puts an object of random bytes into a repository. The seed determines its content.
func addObject(repository string, size int64, seed byte, number int) (object, error) {
	temporary := filepath.Join(repository, "object")
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return object{}, err
	}
	hash, buffered := sha256.New(), bufio.NewWriterSize(file, 1<<20)
	key := [32]byte{seed, byte(number), byte(number >> 8), byte(number >> 16)}
	_, err = io.CopyN(io.MultiWriter(hash, buffered), rand.NewChaCha8(key), size)
	err = errors.Join(err, buffered.Flush(), file.Close())
	o := object{hex.EncodeToString(hash.Sum(nil)), size}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(o.path(repository)), 0o755)
	}
	if err == nil {
		err = os.Rename(temporary, o.path(repository))
	}
	return o, err
}

// server is a running process.
type server struct {
	*loadgen.Child
	url string // of its repositories, or of its only file
	ops string // of a process of packhorse
}

// noSearch are settings of every server. One caller gets up to half of a lane.
const noSearch = "[search]\nenabled = false\n"

// public are the settings of servers that face clients.
const public = "[http]\naddress = \"127.0.0.1:0\"\npublic_read = true\n"

// own starts a server of the repositories.
func (w *world) own(ctx context.Context) (*server, error) {
	return w.start(ctx, "serve", "own", public+noSearch, "--root", w.root())
}

// split starts a storage node and a gateway.
func (w *world) split(ctx context.Context) (*server, error) {
	socket := "unix:" + filepath.Join(w.dir, "node.sock")
	if _, err := w.start(ctx, "storage", "node", noSearch, "--root", w.root(), "--listen", socket); err != nil {
		return nil, err
	}
	return w.start(ctx, "gateway", "gateway", public+fmt.Sprintf("[[node]]\nname = \"node\"\naddress = %q\n", socket))
}

// mirror starts an empty mirror of a server behind a link, and fetches its repository, without objects of LFS.
func (w *world) mirror(ctx context.Context, of *server, name string) (*server, *link.Link, error) {
	l, err := link.New(of.url[len("http://"):])
	if err != nil {
		return nil, nil, err
	}
	w.links = append(w.links, l)
	s, err := w.start(ctx, "mirror", name, noSearch+fmt.Sprintf("[[mirror]]\nfrom = %q\nto = \"origin\"\n",
		"http://"+l.Addr()+"/"), "--root", filepath.Join(w.dir, name, "root"), "--http", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	s.url += "/origin"
	c := gitload.NewClient(s.url, "")
	defer c.Close()
	return s, l, c.Clone(ctx, "app", 0)
}

// start starts a process of packhorse with files in a directory of its own.
func (w *world) start(ctx context.Context, role, name, settings string, args ...string) (*server, error) {
	child, a, err := w.server.Start(ctx, filepath.Join(w.dir, name), role, settings, args...)
	if err != nil {
		return nil, err
	}
	w.servers = append(w.servers, child)
	return &server{Child: child, url: a.HTTP, ops: a.Ops}, nil
}

// static starts Go's file server for one file.
func (w *world) static(ctx context.Context, name, file string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log := filepath.Join(w.dir, "static "+name+".log")
	child, err := loadgen.StartChild(ctx, "packhorse-bench limit", self, []string{"limit", file, "--http", "127.0.0.1:0"},
		log)
	if err != nil {
		return nil, err
	}
	w.servers = append(w.servers, child)
	s := &server{Child: child}
	err = child.Await(ctx, func() bool {
		text, _ := os.ReadFile(log)
		s.url = string(staticURL.Find(text))
		return s.url != ""
	})
	return s, err
}

var staticURL = regexp.MustCompile(`http://[0-9.:]+/`)

// seconds rounds for reports.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
