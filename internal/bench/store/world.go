package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// stores has an S3 server, a store, and the servers of one part.
type stores struct {
	*options
	*world.World
	env         loadgen.Env
	url         string         // of the store
	link        *world.Link    // in front of the storage; nil: none
	address     string         // of the storage, or of the link
	environment []string       // with the keys
	credentials string         // a file
	base        gitload.Commit // the tip of app.git and its copies
}

// open starts versitygw, or uses the caller's server, and makes a store with the repositories of a part.
func (o *options) open(ctx context.Context, env loadgen.Env, part, dir string) (*stores, error) {
	base, err := world.New(dir, o.program)
	w := &stores{options: o, World: base, env: env, credentials: filepath.Join(dir, "credentials"),
		address: strings.TrimSuffix(strings.TrimPrefix(o.endpoint, "http://"), "/"),
		url:     strings.TrimSuffix(o.store, "/")}
	if err != nil {
		return w, err
	}
	key, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	if o.store == "" {
		key, secret = "bench", rand.Text()
	}
	w.environment = append(os.Environ(), "AWS_ACCESS_KEY_ID="+key, "AWS_SECRET_ACCESS_KEY="+secret)
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", key, secret)
	if err := os.WriteFile(w.credentials, []byte(text), 0o600); err != nil {
		return w, err
	}
	if o.store == "" {
		if err := w.startStorage(ctx, key, secret); err != nil {
			return w, err
		}
	}
	w.url += "/" + strings.ToLower(rand.Text())
	if o.delay > 0 || part == "outage" {
		if w.link, err = w.Link(w.address); err != nil {
			return w, err
		}
		w.address = w.link.Addr()
	}
	if err := w.addRepositories(ctx, part); err != nil {
		return w, err
	}
	for _, command := range [][]string{{"init", w.url}, {"import", w.Root(), "--store", w.url}} {
		args := append([]string{"store"}, append(command, "--endpoint", "http://"+w.address, "--path-style",
			"--credentials-file", w.credentials)...)
		if err := w.RunProgram(ctx, args...); err != nil {
			return w, err
		}
	}
	if w.link != nil {
		w.link.Shape(0, o.delay)
	}
	return w, nil
}

// startStorage starts versitygw.
func (w *stores) startStorage(ctx context.Context, key, secret string) error {
	data := filepath.Join(w.Dir, "s3")
	if err := os.MkdirAll(filepath.Join(data, "bench"), 0o700); err != nil { // a bucket is a directory
		return err
	}
	port, err := world.FreePort()
	if err != nil {
		return err
	}
	w.url, w.address = "s3://bench", "127.0.0.1:"+port
	_, err = w.Other(ctx, "versitygw (--versitygw)", w.versitygw, w.address, "--port", w.address, "--access", key,
		"--secret", secret, "--quiet", "posix", data)
	return err
}

// bucket returns the bucket of the store.
func (w *stores) bucket() (*bucket.S3, error) {
	return bucket.New(bucket.Options{URL: w.url, Endpoint: "http://" + w.address, CredentialsFile: w.credentials,
		PathStyle: true})
}

// Close ends the servers, and removes the store from the caller's storage.
func (w *stores) Close() error {
	err := w.End()
	if w.store != "" {
		w.address = strings.TrimSuffix(strings.TrimPrefix(w.endpoint, "http://"), "/") // without a link
		err = errors.Join(err, w.removeStore())
	}
	return errors.Join(err, w.World.Close())
}

func (w *stores) removeStore() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	b, err := w.bucket()
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

// addRepositories makes app.git, a small repository, and further ones for some parts.
func (w *stores) addRepositories(ctx context.Context, part string) error {
	err := w.AddHistory(ctx, "app", 20, 2000)
	if err == nil {
		w.base, err = w.tip(ctx, "app")
	}
	switch part {
	case "push-rate", "kill": // copies of app.git
		for i := range w.repositories {
			err = errors.Join(err, w.Add(ctx, fmt.Sprint("r", i), w.Repository("app")))
		}
	case "clone", "first-clone", "restore":
		err = errors.Join(err, w.AddHistory(ctx, "large", w.megabytes*10, 100_000))
	case "refs":
		err = errors.Join(err, gitload.MakeRefs(ctx, w.env, w.Repository("refs"), w.refs))
	}
	return err
}

// tip returns the tip of main.
func (w *stores) tip(ctx context.Context, repo string) (gitload.Commit, error) {
	return gitload.Tip(ctx, w.Repository(repo), "main")
}

// server is a running process of packhorse.
type server struct {
	*world.Process
	token string
}

// node starts a server with the store and an empty cache.
func (w *stores) node(ctx context.Context, name string) *server {
	return w.start(ctx, "serve", name, w.storeTable(name)+world.Public+world.NoSearch, "--root",
		filepath.Join(w.Dir, name, "cache"))
}

// pair starts a server with plain repositories, and one with the store.
func (w *stores) pair(ctx context.Context) (plain, node *server) {
	return w.start(ctx, "serve", "plain", world.Public+world.NoSearch, "--root", w.Root()), w.node(ctx, "node")
}

func (w *stores) storeTable(node string) string {
	return fmt.Sprintf("[store]\nurl = %q\nendpoint = %q\npath_style = true\ncredentials_file = %q\nnode = %q\n", w.url,
		"http://"+w.address, w.credentials, node)
}

func (w *stores) start(ctx context.Context, role, name, settings string, args ...string) *server {
	s := &server{Process: world.Must(w.Start(ctx, role, name, settings, args...))}
	if s.URL != "" {
		s.token = world.Must(s.Token(ctx))
	}
	return s
}

func (s *server) pusher(repo, branch string, base gitload.Commit) *gitload.Pusher {
	return gitload.NewPusher(s.URL, s.token, repo, branch, base)
}
