package remote_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"

	"github.com/packhorse-git/packhorse/internal/gateway/web/crawl"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// get requests a path of the gateway.
func (w *world) get(method, path string, header ...string) (*http.Response, []byte) {
	w.t.Helper()
	r, err := http.NewRequest(method, w.url+path, http.NoBody)
	w.do(err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	w.do(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	w.do(err)
	return response, body
}

// gitArchive returns the output of git archive.
func gitArchive(t *testing.T, r *gittest.Repo, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	r.Git(append([]string{"archive", "-o", out}, args...)...)
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Archives pass through a gateway in another process, whatever the data path, with their checksum.
func TestArchives(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	for name, o := range map[string]options{"side channel": {}, "unix": {unix: true}, "in band": {inBand: true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, o)
			repo := w.repo("team/app.git", 1<<20)
			repo.Git("update-ref", "refs/heads/topic/a.b", "main")
			want := gitArchive(t, repo, "--format=tar", "--prefix=app-topic-a.b/", "topic/a.b")
			path := "/team/app.git/-/archive/topic/a.b.tar"
			response, got := w.get("GET", path)
			digest := sha256.Sum256(want)
			tag := fmt.Sprintf(`"%x"`, digest)
			if response.StatusCode != 200 || !bytes.Equal(got, want) || response.ContentLength != int64(len(want)) ||
				response.Header.Get("Content-Type") != "application/x-tar" ||
				response.Header.Get("Content-Disposition") != "attachment; filename=app-topic-a.b.tar" {
				t.Fatalf("%s: %s, %d bytes, %v", path, response.Status, len(got), response.Header)
			}
			kernel := w.value("packhorse_copy_bytes_total", "path=kernel")
			response, got = w.get("GET", path)
			if !bytes.Equal(got, want) || response.Header.Get("Etag") != tag ||
				response.Header.Get("Repr-Digest") != "sha-256=:"+base64.StdEncoding.EncodeToString(digest[:])+":" {
				t.Errorf("again: %s, %d bytes, %v", response.Status, len(got), response.Header)
			}
			byKernel := func() float64 { return w.value("packhorse_copy_bytes_total", "path=kernel") - kernel }
			if !o.inBand && !eventually(func() bool { return byKernel() > 0.99*float64(len(want)) }) {
				t.Errorf("the kernel copied %g bytes of %d", byKernel(), len(want))
			}
			for _, c := range []struct {
				method string
				header []string
				status int
				length int64
				body   []byte
			}{
				{"HEAD", nil, 200, int64(len(want)), nil},
				{"GET", []string{"If-None-Match", "W/\"x\", " + tag}, 304, 0, nil},
				{"GET", []string{"If-None-Match", `"x"`, "Range", "bytes=512-1023"}, 200, int64(len(want)), want},
				{"POST", nil, 405, -1, nil},
			} {
				response, got := w.get(c.method, path, c.header...)
				if response.StatusCode != c.status || c.length >= 0 && (!bytes.Equal(got, c.body) ||
					c.status != 304 && response.ContentLength != c.length) {
					t.Errorf("%s %q: %s, %d bytes, length %d; want %d, %d", c.method, c.header, response.Status, len(got),
						response.ContentLength, c.status, c.length)
				}
			}
			_, packed := w.get("GET", "/team/app.git/-/archive/topic/a.b.tar.gz")
			z, err := gzip.NewReader(bytes.NewReader(packed))
			w.do(err)
			if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, want) {
				t.Errorf("tar.gz: %d bytes, %v", len(got), err)
			}
			for path, status := range map[string]int{
				"main.tar.xz": 404, ".tar": 404, "none.tar": 404, "main%0A.tar": 400, "--output=x.tar": 404, "main%00.tar": 400,
				"main:data.tar": 400, "main..topic.tar": 400, "%ff.tar": 404, strings.Repeat("1", 40) + ".zip": 404,
				strings.Repeat("x", 5000) + ".tar": 400, "-c.tar": 404, "main%5E{tree}.tar": 400, "main~1.tar": 404,
			} {
				if response, body := w.get("GET", "/team/app.git/-/archive/"+path); response.StatusCode != status {
					t.Errorf("%.80s: %s %.200s, want %d", path, response.Status, body, status)
				}
			}
			if response, _ := w.get("GET", "/team/none/-/archive/main.tar"); response.StatusCode != 404 {
				t.Errorf("an archive of no repository: %s", response.Status)
			}
		})
	}
}

// A client cannot get the archive of a commit that no visible ref reaches, and equal requests share one making.
func TestArchivesOfHiddenCommits(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	w := newWorld(t, options{})
	repo := w.repo("app", 1<<20)
	lost := repo.Commit("not in a ref", repo.ID("main"))
	repo.Git("config", "transfer.hideRefs", "refs/secret")
	repo.Git("update-ref", "refs/secret/x", lost.String())
	for path, status := range map[string]int{lost.String() + ".tar": 404, "refs/secret/x.tar": 404, "secret/x.tar": 404,
		repo.ID("main").String() + ".tar": 200, lost.String()[:10] + "%5E{tree}.tar": 404} {
		if response, body := w.get("GET", "/app/-/archive/"+path); response.StatusCode != status {
			t.Errorf("%s: %s %.200s, want %d", path, response.Status, body, status)
		}
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { w.get("GET", "/app/-/archive/main.tar.zst") })
	}
	all.Wait()
	misses := func() int { return strings.Count(w.log.String(), "cache=miss") } // of gateway and node, for two archives
	if !eventually(func() bool { return strings.Count(w.log.String(), "msg=request") == 13 }) || misses() != 4 ||
		!strings.Contains(w.log.String(), "operation=archive result=ok") {
		t.Errorf("8 equal requests are not one making, or not logged: %d lines with a miss", misses())
	}
}

// Archives of anonymous callers count against the time of their network.
func TestArchivesOfCrawlers(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	for name, anonymous := range map[string]bool{"anonymous": true, "ada": false} {
		var now atomic.Int64
		w := newWorld(t, options{anonymous: anonymous,
			gate: crawl.New(nil, 10*time.Second, func() time.Time { return time.Unix(now.Add(60), 0) })})
		w.repo("app", 1<<10)
		if response, body := w.get("GET", "/app/-/archive/main.tar"); response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %.200s, want 200", name, response.Status, body)
		}
		response, body := w.get("GET", "/app/-/archive/main.zip")
		after := response.Header.Get("Retry-After")
		if (response.StatusCode == http.StatusTooManyRequests && after != "") != anonymous {
			t.Errorf("%s, after a minute of making: %s, Retry-After %q, %.200s", name, response.Status, after, body)
		}
	}
}

// Programs get archives by gRPC, with the header in the first message.
func TestArchiveService(t *testing.T) {
	w := newWorld(t, options{})
	repo := w.repo("app", 1<<20)
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (
		net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", w.address)
	}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	client := packhorsev1connect.NewArchiveServiceClient(&http.Client{Transport: transport}, "http://"+w.address,
		connect.WithGRPC())
	read := func(m *packhorsev1.ArchiveRequest) (header *packhorsev1.ArchiveHeader, content []byte, err error) {
		stream, err := client.Archive(t.Context(), connect.NewRequest(m))
		if err != nil {
			return nil, nil, err
		}
		defer stream.Close()
		for stream.Receive() {
			if header == nil {
				header = stream.Msg().GetHeader()
			}
			content = append(content, stream.Msg().GetData()...)
		}
		return header, content, stream.Err()
	}
	header, content, err := read(&packhorsev1.ArchiveRequest{Repository: "app", Prefix: "p/", Paths: []string{"data"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := gitArchive(t, repo, "--format=tar", "--prefix=p/", "main", "data"); !bytes.Equal(content, want) ||
		header.GetSize() != int64(len(want)) || header.GetSha256() != fmt.Sprintf("%x", sha256.Sum256(want)) ||
		header.GetCommit() != repo.ID("main").String() {
		t.Errorf("archive of %d bytes, %v", len(content), header)
	}
	for _, c := range []struct {
		m    *packhorsev1.ArchiveRequest
		want connect.Code
	}{
		{&packhorsev1.ArchiveRequest{Repository: "none"}, connect.CodeNotFound},
		{&packhorsev1.ArchiveRequest{Repository: "app", Revision: "x\ny"}, connect.CodeInvalidArgument},
		{&packhorsev1.ArchiveRequest{Repository: "app", Format: "rar"}, connect.CodeInvalidArgument},
		{&packhorsev1.ArchiveRequest{Repository: "app", Prefix: "../"}, connect.CodeInvalidArgument},
		{&packhorsev1.ArchiveRequest{Repository: "app", Paths: []string{"a", "../b"}}, connect.CodeInvalidArgument},
		{&packhorsev1.ArchiveRequest{Repository: "app", Paths: []string{"none"}}, connect.CodeNotFound},
		{&packhorsev1.ArchiveRequest{Repository: "app", Revision: repo.Blob("x").String()}, connect.CodeInvalidArgument},
	} {
		if _, _, err := read(c.m); connect.CodeOf(err) != c.want {
			t.Errorf("Archive(%v): %v, want %v", c.m, err, c.want)
		}
	}
}
