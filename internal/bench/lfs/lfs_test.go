package lfs

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func TestMain(m *testing.M) {
	benchtest.Main(m, func(env loadgen.Env) []*cobra.Command { return []*cobra.Command{Command(env)} })
}

// serve answers batch requests with URLs of the objects in a repository, and serves those.
func serve(t *testing.T, repository string) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /app/info/lfs/objects/batch", func(w http.ResponseWriter, r *http.Request) {
		var message struct {
			Objects []map[string]any `json:"objects"`
		}
		if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
			t.Error(err)
		}
		for _, o := range message.Objects {
			if _, err := os.Stat(object{oid: fmt.Sprint(o["oid"])}.path(repository)); err == nil {
				href := fmt.Sprintf("http://%s/%s", r.Host, o["oid"])
				o["actions"] = map[string]any{"download": map[string]any{"href": href}}
			}
		}
		if err := json.NewEncoder(w).Encode(message); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /{oid}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, object{oid: r.PathValue("oid")}.path(repository))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestClient(t *testing.T) {
	t.Parallel()
	repository := t.TempDir()
	var objects []object
	for i := range 3 {
		o, err := addObject(repository, 300_000, 't', i)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	s := serve(t, repository)
	urls, took, err := batch(t.Context(), s.URL+"/app", objects)
	if err != nil || len(urls) != 3 || took <= 0 {
		t.Fatalf("batch() = %v, %v, %v, want three URLs", urls, took, err)
	}
	if err := download(t.Context(), urls[0], 300_000); err != nil {
		t.Errorf("download() = %v, want no error", err)
	}
	if err := download(t.Context(), urls[0], 300_001); err == nil {
		t.Error("download() of an object of another size succeeded, want an error")
	}
	if err := fetchAll(t.Context(), urls, objects); err != nil {
		t.Errorf("fetchAll() = %v, want no error", err)
	}
	objects[1].size++
	if err := fetchAll(t.Context(), urls, objects); err == nil {
		t.Error("fetchAll() of an object of another size succeeded, want an error")
	}
	missing := object{strings.Repeat("0", 64), 1}
	if _, _, err := batch(t.Context(), s.URL+"/app", append(objects, missing)); err == nil {
		t.Error("batch() of a missing object succeeded, want an error")
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"nothing":          "invalid argument",
		"cold --rounds 0":  "--rounds",
		"warm --runners 0": "--runners",
	} {
		_, _, err := benchtest.Run(t, t.Context(), append([]string{"lfs"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("packhorse-bench lfs %s = %v, want an error with %q", args, err, want)
		}
	}
}

// The object's file has the layout of git-lfs.
func TestObject(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := addObject(dir, 1000, 'o', 1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := addObject(dir, 1000, 'o', 257)
	if err != nil || a.oid == b.oid {
		t.Errorf("two objects have the IDs %s and %s, %v, want different ones", a.oid, b.oid, err)
	}
	want := filepath.Join(dir, "lfs/objects", a.oid[:2], a.oid[2:4], a.oid)
	if info, err := os.Stat(want); err != nil || info.Size() != 1000 {
		t.Errorf("%s: %v, %v, want 1000 bytes", want, info, err)
	}
}
