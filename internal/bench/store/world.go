package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/link"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// storage is an S3 server.
type storage struct {
	*loadgen.Child // nil: the caller's

	address     string // host:port
	url         string // below which stores are made
	environment []string
	credentials string // a file
}

// openStorage starts versitygw with files in dir, or uses the caller's server.
func (o *options) openStorage(ctx context.Context, dir string) (*storage, error) {
	s := &storage{url: strings.TrimSuffix(o.store, "/"), credentials: filepath.Join(dir, "credentials"),
		address: strings.TrimSuffix(strings.TrimPrefix(o.endpoint, "http://"), "/")}
	key, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	if o.store == "" {
		key, secret = "bench", rand.Text()
	}
	s.environment = append(os.Environ(), "AWS_ACCESS_KEY_ID="+key, "AWS_SECRET_ACCESS_KEY="+secret)
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", key, secret)
	if err := os.WriteFile(s.credentials, []byte(text), 0o600); err != nil || o.store != "" {
		return s, err
	}
	data := filepath.Join(dir, "s3")
	if err := os.MkdirAll(filepath.Join(data, "bench"), 0o700); err != nil { // a bucket is a directory
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.Close()
	s.url, s.address = "s3://bench", l.Addr().String()
	s.Child, err = loadgen.StartChild(ctx, "versitygw (--versitygw)", o.versitygw, []string{"--port", s.address,
		"--access", key, "--secret", secret, "--quiet", "posix", data}, filepath.Join(dir, "versitygw.log"))
	if err != nil {
		return nil, err
	}
	s.Foreign = true
	err = s.Await(ctx, func() bool {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return s, err
}

// close ends the server, if it was started.
func (s *storage) close() error {
	if s == nil || s.Child == nil {
		return nil
	}
	return s.Stop()
}

// bucket returns the bucket of a store. address is that of the server, or of a link to it.
func (s *storage) bucket(url, address string) (*bucket.S3, error) {
	return bucket.New(bucket.Options{URL: url, Endpoint: "http://" + address, CredentialsFile: s.credentials,
		PathStyle: true})
}

// world is a store, and the servers of one part.
type world struct {
	*options
	env     loadgen.Env
	dir     string
	s3      *storage
	url     string     // of the store
	link    *link.Link // in front of the storage; nil: none
	address string     // of the storage, or of the link
	servers []*loadgen.Child
	base    commit // the tip of app.git and its copies
}

// partLimit is the time limit of a part, without an outage.
const partLimit = 30 * time.Minute

// measure makes a store with the repositories of a part, and measures.
func (o *options) measure(ctx context.Context, env loadgen.Env, s3 *storage, p part, dir string) (f []loadgen.Figure,
	err error) {
	w := &world{options: o, env: env, dir: dir, s3: s3, url: s3.url + "/" + strings.ToLower(rand.Text()),
		address: s3.address}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	if o.delay > 0 || p.link {
		if w.link, err = link.New(s3.address); err != nil {
			return nil, err
		}
		w.address = w.link.Addr()
	}
	if err := w.addApp(ctx); err != nil {
		return nil, err
	}
	if p.prepare != nil {
		if err := p.prepare(w, ctx); err != nil {
			return nil, err
		}
	}
	for _, command := range [][]string{{"init", w.url}, {"import", w.root(), "--store", w.url}} {
		args := append([]string{"store"}, append(command, "--endpoint", "http://"+w.address, "--path-style",
			"--credentials-file", s3.credentials)...)
		if out, err := exec.CommandContext(ctx, o.server.Program, args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("packhorse store %s: %w: %s", command[0], err, loadgen.Clean(out))
		}
	}
	if w.link != nil {
		w.link.Shape(0, o.delay)
	}
	limit := partLimit + o.outage
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not finished within %v", limit))
	defer cancel()
	if f, err = p.measure(w, ctx); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return f, err
}

// close ends the servers, and removes the store from the caller's storage.
func (w *world) close(ctx context.Context) error {
	var errs []error
	for _, s := range w.servers {
		errs = append(errs, s.Stop())
	}
	if w.link != nil {
		w.link.Close()
	}
	if w.s3.Child == nil {
		errs = append(errs, w.removeStore(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

func (w *world) removeStore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	b, err := w.s3.bucket(w.url, w.s3.address)
	for err == nil {
		var list []bucket.Info
		if list, err = b.List(ctx, "", "", 1000); len(list) == 0 {
			break
		}
		for _, object := range list {
			err = errors.Join(err, b.Delete(ctx, object.Key))
		}
	}
	return err
}

// root has the repositories with which the store and the plain server begin.
func (w *world) root() string { return filepath.Join(w.dir, "repositories") }

func (w *world) repository(name string) string { return filepath.Join(w.root(), name+".git") }

// addApp makes app.git, a small repository.
func (w *world) addApp(ctx context.Context) error {
	err := os.MkdirAll(w.root(), 0o700)
	if err == nil {
		err = gitload.Synthesize(ctx, w.repository("app"), 20, 2000)
	}
	if err == nil {
		w.base, err = w.tip(ctx, "app")
	}
	return err
}

// tip returns the tip of main.
func (w *world) tip(ctx context.Context, repo string) (c commit, err error) {
	out, err := gitload.RunGit(ctx, w.repository(repo), nil, "rev-parse", "main", "main^{tree}")
	if err == nil {
		_, err = fmt.Sscan(out, &c.id, &c.tree)
	}
	return c, err
}

// addMany makes copies of app.git: r0.git, r1.git and so on.
func (w *world) addMany(ctx context.Context) error {
	for i := range w.repositories {
		if err := gitload.Mirror(ctx, w.repository("app"), w.repository(fmt.Sprint("r", i))); err != nil {
			return err
		}
	}
	return nil
}

// addLarge makes large.git.
func (w *world) addLarge(ctx context.Context) error {
	return gitload.Synthesize(ctx, w.repository("large"), w.megabytes*10, 100_000)
}

// addRefs makes refs.git, with very many refs.
func (w *world) addRefs(ctx context.Context) error {
	return gitload.MakeRefs(ctx, w.env, w.repository("refs"), w.refs)
}

// server is a running process of packhorse.
type server struct {
	*loadgen.Child
	url, ops, token string
}

// public are the settings of servers that face clients. One caller gets up to half of a lane.
const public = "[http]\naddress = \"127.0.0.1:0\"\npublic_read = true\n[lanes]\nsmall = 20_000\n"

const noSearch = "[search]\nenabled = false\n"

// plain starts a server with plain repositories.
func (w *world) plain(ctx context.Context) (*server, error) {
	return w.start(ctx, "serve", "plain", public+noSearch, "--root", w.root())
}

// node starts a server with the store and an empty cache.
func (w *world) node(ctx context.Context, name string) (*server, error) {
	return w.start(ctx, "serve", name, w.storeTable(name)+public+noSearch, "--root", filepath.Join(w.dir, name, "cache"))
}

// pair starts both kinds of server.
func (w *world) pair(ctx context.Context) (plain, node *server, err error) {
	if plain, err = w.plain(ctx); err == nil {
		node, err = w.node(ctx, "node")
	}
	return plain, node, err
}

func (w *world) storeTable(node string) string {
	return fmt.Sprintf("[store]\nurl = %q\nendpoint = %q\npath_style = true\ncredentials_file = %q\nnode = %q\n", w.url,
		"http://"+w.address, w.s3.credentials, node)
}

// start starts a process with files in a directory of its own.
func (w *world) start(ctx context.Context, role, name, settings string, args ...string) (*server, error) {
	dir := filepath.Join(w.dir, name)
	child, a, err := w.server.Start(ctx, dir, role, settings, args...)
	if err != nil {
		return nil, err
	}
	w.servers = append(w.servers, child)
	s := &server{Child: child, url: a.HTTP, ops: a.Ops}
	if a.HTTP != "" {
		s.token, err = gitload.CreateToken(ctx, w.server.Program, filepath.Join(dir, "state"))
	}
	return s, err
}
