package githttp_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// TestLFSBatch checks the states of objects in both operations, and URLs.
func TestLFSBatch(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	here, missing := n.add(t, "here"), objectOf("missing")
	huge := lfs.Object{OID: missing.OID, Size: 1 << 50}
	s := serveLFS(t, n, options{})
	ask := func(operation string, objects ...lfs.Object) (b wire.BatchResponse) {
		t.Helper()
		response, body := s.do("POST", "/team/app.git/info/lfs/objects/batch", batchOf(operation, objects...), alice,
			document)
		if err := json.Unmarshal([]byte(body), &b); err != nil || response.StatusCode != 200 ||
			response.Header.Get("Content-Type") != wire.MediaType || len(b.Objects) != len(objects) {
			t.Fatalf("%s: %s %q, want 200 and %d objects", operation, response.Status, body, len(objects))
		}
		return b
	}
	wrong := lfs.Object{OID: here.OID, Size: 5}
	b := ask("download", here, missing, wrong, here)
	at := "http://" + s.addr + pathOf(here)
	if o := b.Objects[0]; b.Transfer != "basic" || o.Actions == nil || withoutQuery(o.Actions.Download.Href) != at ||
		o.Error != nil ||
		len(o.Actions.Download.Header) != 0 || o.Object != (wire.Object{OID: here.OID.String(), Size: 4}) {
		t.Errorf("download of an object that is here = %+v, want the action %s", o, at)
	}
	if o := b.Objects[1]; o.Actions != nil || o.Error == nil || o.Error.Code != 404 {
		t.Errorf("download of a missing object = %+v, want 404", o)
	}
	if o := b.Objects[2]; o.Error == nil || o.Error.Code != 422 || o.Error.Message != "another size" {
		t.Errorf("download with another size = %+v, want 422", o)
	}
	b = ask("upload", here, missing, huge)
	if o := b.Objects[0]; b.Transfer != "tus" || o.Actions != nil || o.Error != nil {
		t.Errorf("upload of an object that is here = %+v by %s, want nothing to do, and tus", o, b.Transfer)
	}
	if o := b.Objects[1]; o.Actions == nil || o.Actions.Upload == nil ||
		!strings.HasSuffix(withoutQuery(o.Actions.Upload.Href), pathOf(missing)) ||
		o.Actions.Verify == nil ||
		!strings.HasSuffix(withoutQuery(o.Actions.Verify.Href), "/team/app.git/info/lfs/objects/verify") {
		t.Errorf("upload of a missing object = %+v, want upload and verify", o)
	}
	if o := b.Objects[2]; o.Error == nil || o.Error.Code != 507 {
		t.Errorf("upload over the quota = %+v, want 507", o)
	}
	for _, want := range []string{"level=INFO msg=request .* result=ok .* objects_refused=1 reason=invalid\n",
		"level=WARN msg=request .* result=ok .* objects_refused=1 reason=quota\n"} {
		if !eventually(func() bool { return regexp.MustCompile(want).MatchString(s.log.String()) }) {
			t.Errorf("log = %s, want %s", s.log, want)
		}
	}
	if got := ask("download"); len(got.Objects) != 0 {
		t.Errorf("empty batch = %+v, want no objects", got)
	}
}

// TestLFSURL checks that URLs in responses are those of clients: lfs.url if it is set, or what a trusted proxy reports.
func TestLFSURL(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	o := n.add(t, "x")
	at, _ := url.Parse("https://git.example/prefix")
	s := serveLFS(t, n, options{lfs: &gateway.LFS{URL: at, Tokens: lfsTokens}})
	_, body := s.do("POST", "/team/app.git/info/lfs/objects/batch", batchOf("download", o), alice, document)
	if want := `"https://git.example/prefix` + pathOf(o) + `?token=`; !strings.Contains(body, want) {
		t.Errorf("batch = %s, want %s", body, want)
	}
	s = serveLFS(t, n, options{})
	s.handler.Proxies = clients.Proxies{netip.MustParsePrefix("127.0.0.0/8")}
	_, body = s.do("POST", "/team/app.git/info/lfs/objects/batch", batchOf("upload", objectOf("y")), alice, document,
		"X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https", "X-Forwarded-Host: lb.example:8443")
	for _, want := range []string{`"https://lb.example:8443` + pathOf(objectOf("y")) + `?token=`,
		`"https://lb.example:8443/team/app.git/info/lfs/objects/verify?token=`} {
		if !strings.Contains(body, want) {
			t.Errorf("batch behind a proxy = %s, want %s", body, want)
		}
	}
}

// TestLFSIsNotTheApplications: an application gets no request of Git LFS if the gateway serves it.
func TestLFSIsNotTheApplications(t *testing.T) {
	t.Parallel()
	s := serveLFS(t, newLFSNode(t), options{application: application{}})
	for _, path := range []string{"objects/batch", "objects/x/1", "locks", "other"} {
		if response, body := s.do("GET", "/team/app/info/lfs/"+path, "", bob); strings.HasPrefix(body, "app ") ||
			response.Header.Get("Content-Type") != wire.MediaType {
			t.Errorf("GET %s: %s %q, want a document of Git LFS", path, response.Status, body)
		}
	}
}

// TestLFSRefusals sends requests that are refused, and checks the statuses and the documents.
func TestLFSRefusals(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	s := serveLFS(t, n, options{})
	o := objectOf("x")
	one := func(object string) string { return `{"operation":"download","objects":[` + object + `]}` }
	id := o.OID.String()
	const batch, app = "/team/app/info/lfs/objects/batch", "/team/app/info/lfs/"
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
	}{
		{"no credentials", "POST", batch, batchOf("download", o), []string{document}, 401},
		{"no right to write", "POST", batch, batchOf("upload", o), []string{bob, document}, 403},
		{"anonymous upload", "POST", "/open/info/lfs/objects/batch", batchOf("upload", o), []string{document}, 401},
		{"hidden", "POST", "/team/secret/info/lfs/objects/batch", batchOf("download", o), []string{alice, document}, 404},
		{"hidden upload", "PUT", "/team/secret/info/lfs/objects/" + id + "/1", "x", []string{alice}, 404},
		{"content type", "POST", batch, batchOf("download", o), []string{alice, "Content-Type: text/plain"}, 415},
		{"accept", "POST", batch, batchOf("download", o), []string{alice, document, "Accept: text/html"}, 406},
		{"method", "GET", batch, "", []string{alice, document}, 405},
		{"not JSON", "POST", batch, "{", []string{alice, document}, 422},
		{"array", "POST", batch, "[]", []string{alice, document}, 422},
		{"two documents", "POST", batch, one("") + "{}", []string{alice, document}, 422},
		{"operation", "POST", batch, `{"operation":"x"}`, []string{alice, document}, 422},
		{"hash algorithm", "POST", batch, `{"operation":"upload","hash_algo":"sha512"}`, []string{alice, document}, 409},
		{"upper case", "POST", batch, one(`{"oid":"` + strings.ToUpper(id) + `","size":1}`), []string{alice, document}, 422},
		{"traversal", "POST", batch, one(`{"oid":"../../../../etc/passwd","size":1}`), []string{alice, document}, 422},
		{"negative", "POST", batch, one(`{"oid":"` + id + `","size":-1}`), []string{alice, document}, 422},
		{"fraction", "POST", batch, one(`{"oid":"` + id + `","size":1.5}`), []string{alice, document}, 422},
		{"huge", "POST", batch, one(`{"oid":"` + id + `","size":99999999999999999999}`), []string{alice, document}, 422},
		{"objects", "POST", batch, `{"operation":"upload","objects":{}}`, []string{alice, document}, 422},
		{"gzip bomb", "POST", batch, "not gzip", []string{alice, document, "Content-Encoding: gzip"}, 422},
		{"path", "GET", app + "nothing", "", []string{alice}, 404},
		{"object ID", "GET", app + "objects/..%2f..%2fsecret/1", "", []string{alice}, 422},
		{"dots", "GET", app + "objects/%2e%2e/1", "", []string{alice}, 422},
		{"no size", "GET", app + "objects/" + id, "", []string{alice}, 422},
		{"signed size", "GET", app + "objects/" + id + "/+1", "", []string{alice}, 422},
		{"negative size", "GET", app + "objects/" + id + "/-1", "", []string{alice}, 422},
		{"size out of range", "GET", app + "objects/" + id + "/9223372036854775808", "", []string{alice}, 422},
		{"unknown object", "GET", app + "objects/" + id + "/1", "", []string{alice}, 404},
		{"creation by tus", "POST", app + "objects/" + id + "/1", "", []string{alice, "Tus-Resumable: 1.0.0"}, 405},
		{"version of tus", "PATCH", app + "objects/" + id + "/1", "x", []string{alice, "Tus-Resumable: 0.2.2"}, 412},
		{"type of tus", "PATCH", app + "objects/" + id + "/1", "x", []string{alice, "Tus-Resumable: 1.0.0"}, 415},
		{"upload by a reader", "PUT", app + "objects/" + id + "/1", "x", []string{bob}, 403},
		{"another length", "PUT", app + "objects/" + id + "/2", "x", []string{alice}, 422},
		{"another content", "PUT", app + "objects/" + id + "/1", "y", []string{alice}, 422},
		{"encoded", "PUT", app + "objects/" + id + "/1", "x", []string{alice, "Content-Encoding: gzip"}, 415},
		{"a part by PUT", "PUT", app + "objects/" + id + "/1", "x", []string{alice, "Content-Range: bytes 0-0/1"}, 400},
		{"verify", "POST", app + "objects/verify", `{"oid":"` + id + `","size":1}`, []string{alice, document}, 404},
		{"verify by a reader", "POST", app + "objects/verify", "{}", []string{bob, document}, 403},
		{"verify nothing", "POST", app + "objects/verify", "{}", []string{alice, document}, 422},
		{"lock by a reader", "POST", app + "locks", `{"path":"a"}`, []string{bob, document}, 403},
		{"locks of a reader", "POST", app + "locks/verify", `{}`, []string{bob, document}, 403},
		{"bad limit", "GET", app + "locks?limit=-1", "", []string{alice}, 422},
		{"unknown lock", "POST", app + "locks/id7/unlock", "{}", []string{alice, document}, 404},
		{"huge document", "POST", app + "locks", `{"path":"` + strings.Repeat("a", 70<<10) + `"}`, []string{alice, document},
			413},
	} {
		response, body := s.do(c.method, c.path, c.body, c.headers...)
		var e wire.Error
		err := json.Unmarshal([]byte(body), &e)
		if response.StatusCode != c.status || err != nil || e.Message == "" || e.Documentation == "" ||
			response.Header.Get("Content-Type") != wire.MediaType ||
			(c.status == 401) != (response.Header.Get("LFS-Authenticate") != "") {
			t.Errorf("%s: %s %v %q, want %d and a document", c.name, response.Status, response.Header, body, c.status)
		}
	}
	if slices.ContainsFunc(n.repos, func(r string) bool { return strings.HasPrefix(r, "team/secret") }) {
		t.Errorf("repositories that the node was asked about = %q, want none that is hidden", n.repos)
	}
}

// TestLFSMillionObjects checks that a batch of any size is refused after its first part.
func TestLFSMillionObjects(t *testing.T) {
	t.Parallel()
	s := serveLFS(t, newLFSNode(t), options{maxBody: 1 << 30})
	const objects = 1_000_000
	line := fmt.Sprintf(`{"oid":"%s","size":1},`, objectOf("x").OID)
	body := &countingReader{r: io.MultiReader(strings.NewReader(`{"operation":"download","objects":[`),
		io.LimitReader(&repeatedReader{text: line}, int64(objects*len(line))))}
	r, err := http.NewRequest("POST", "http://"+s.addr+"/team/app/info/lfs/objects/batch", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer alice")
	r.Header.Set("Content-Type", wire.MediaType)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err == nil { // otherwise the connection was closed before the response was read
		response.Body.Close()
		if response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("status = %d, want 413", response.StatusCode)
		}
	}
	if !eventually(func() bool { return strings.Contains(s.log.String(), "status=413") }) {
		t.Errorf("log = %s, want a response with status 413", s.log)
	}
	if n := body.n.Load(); n > 16<<20 {
		t.Errorf("bytes sent = %d, want the server to stop after a small part", n)
	}
}

// countingReader counts the bytes that were read.
type countingReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// repeatedReader repeats a text without an end.
type repeatedReader struct {
	text string
	at   int
}

func (r *repeatedReader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		c := copy(p[n:], r.text[r.at:])
		n, r.at = n+c, (r.at+c)%len(r.text)
	}
	return n, nil
}

// TestLFSTokens checks what a token of git-lfs-authenticate is good for.
func TestLFSTokens(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	o := n.add(t, "x")
	s := serveLFS(t, n, options{})
	repo, err := git.ParseRepoPath("team/app.git")
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	token := lfsTokens.New("alice", key, repo, auth.Read)
	header := "Authorization: " + token
	_, body := s.do("POST", "/team/app.git/info/lfs/objects/batch", batchOf("download", o), header, document)
	var b wire.BatchResponse
	if err := json.Unmarshal([]byte(body), &b); err != nil || len(b.Objects) != 1 || b.Objects[0].Actions == nil {
		t.Fatalf("batch with a token = %s, want an action", body)
	}
	action := b.Objects[0].Actions.Download
	if !b.Objects[0].Authenticated || action.Header["Authorization"] != token || action.ExpiresIn < 600 ||
		action.ExpiresIn > 1800 {
		t.Errorf("action = %+v, want the token and its expiry", action)
	}
	for path, status := range map[string]int{
		pathOf(o): 200,
		strings.Replace(pathOf(o), "app.git", "app", 1):       200,
		strings.Replace(pathOf(o), "app.git", "other.git", 1): 401,
		"/open/info/lfs/locks":                                401,
	} {
		if response, body := s.do("GET", path, "", header); response.StatusCode != status {
			t.Errorf("GET %s: %s %q, want %d", path, response.Status, body, status)
		}
	}
	if response, body := s.do("PUT", pathOf(objectOf("y")), "y", header); response.StatusCode != 403 {
		t.Errorf("upload with a token for downloads: %s %q, want 403", response.Status, body)
	}
	if response, _ := s.do("GET", pathOf(o), "", header[:len(header)-1]+"a"); response.StatusCode != 401 {
		t.Errorf("a changed token: %s, want 401", response.Status)
	}
	if log := s.log.String(); strings.Contains(log, strings.TrimPrefix(token, "Bearer ")) ||
		!strings.Contains(log, "user=alice auth=key") {
		t.Errorf("log = %s, want the user and not the token", log)
	}
}

func withoutQuery(u string) string {
	u, _, _ = strings.Cut(u, "?")
	return u
}

// actionsOf sends a batch about one object and returns its actions.
func (s *server) actionsOf(batch string, headers ...string) wire.Actions {
	s.t.Helper()
	_, body := s.do("POST", "/team/app.git/info/lfs/objects/batch", batch, append(headers, document)...)
	var b wire.BatchResponse
	if err := json.Unmarshal([]byte(body), &b); err != nil || len(b.Objects) != 1 || b.Objects[0].Actions == nil {
		s.t.Fatalf("batch = %s, want actions of one object", body)
	}
	return *b.Objects[0].Actions
}

// TestLFSURLTokens checks that clients can use actions as they are, and what the tokens in their URLs are good for.
func TestLFSURLTokens(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	s := serveLFS(t, n, options{})
	const content = "content"
	o, other := objectOf(content), n.add(t, "other")
	below := func(action *wire.Action) string { return strings.TrimPrefix(action.Href, "http://"+s.addr) }
	batch := strings.Replace(batchOf("upload", o), `"objects"`, `"ref":{"name":"refs/heads/a&b"},"objects"`, 1)
	up := s.actionsOf(batch, alice)
	if ref := "?ref=refs%2Fheads%2Fa%26b&token="; !strings.Contains(up.Upload.Href, ref) ||
		up.Upload.ExpiresIn != int64(auth.LFSTokenLife/time.Second) || len(up.Upload.Header) != 0 {
		t.Errorf("upload = %+v, want a URL with %s, its expiry and no header", up.Upload, ref)
	}
	expect := func(what string, status int, method, path, body string, headers ...string) {
		t.Helper()
		if response, text := s.do(method, path, body, headers...); response.StatusCode != status {
			t.Errorf("%s: %s %q, want %d", what, response.Status, text, status)
		}
	}
	_, query, _ := strings.Cut(below(up.Upload), "?")
	expect("upload of another object", 401, "PUT", pathOf(objectOf("x"))+"?"+query, "x")
	expect("download with a token for uploads", 401, "GET", pathOf(o)+"?"+query, "")
	expect("upload to another repository", 401, "PUT", strings.Replace(below(up.Upload), "app", "other", 1), content)
	expect("a changed token", 401, "PUT", below(up.Upload)[:len(below(up.Upload))-3]+"aaa", content)
	expect("a changed token and a credential", 200, "PUT", pathOf(o)+"?token=phk_a", content, alice)
	expect("upload", 200, "PUT", below(up.Upload), content)
	expect("verification", 200, "POST", below(up.Verify), `{"oid":"`+o.OID.String()+`","size":7}`, document)
	down := s.actionsOf(batchOf("download", o), bob).Download
	expect("download", 200, "GET", below(down), "")
	expect("part", 206, "GET", below(down), "", "Range: bytes=1-2")
	expect("upload with a token for downloads", 401, "PUT", below(down), content)
	expect("a header as well", 200, "GET", below(down), "", "Authorization: Bearer nobody")
	expect("a page", 401, "GET", "/team/app.git/info/lfs/locks?"+query, "")
	_, query, _ = strings.Cut(below(down), "?")
	expect("another object", 401, "GET", pathOf(other)+"?"+query, "")
	if log := s.log.String(); strings.Contains(log, "token=") || strings.Contains(log, "phk_") ||
		!strings.Contains(log, "user=alice") {
		t.Errorf("log = %s, want the user and no token", log)
	}
}

// TestLFSLocks creates, lists and removes locks.
func TestLFSLocks(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	n.locks = []lfs.Lock{{ID: "id0", Path: "b.bin", Owner: "carol", Time: time.Unix(1e9, 0)}}
	s := serveLFS(t, n, options{})
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "locks", `{"path":"a.bin","ref":{"name":"refs/heads/main"}}`, 201,
			`{"lock":{"id":"id1","path":"a.bin","locked_at":"2001-09-09T01:46:40Z","owner":{"name":"alice"}}}`},
		{"POST", "locks", `{"path":"b.bin"}`, 409, `{"lock":{"id":"id0","path":"b.bin","locked_at":"2001-09-09T01:46:40Z",` +
			`"owner":{"name":"carol"}},"message":"b.bin is locked by carol"}`},
		{"GET", "locks?path=a.bin", "", 200, `{"locks":[{"id":"id1","path":"a.bin","locked_at":"2001-09-09T01:46:40Z",` +
			`"owner":{"name":"alice"}}]}`},
		{"GET", "locks?path=c.bin", "", 200, `{"locks":[]}`},
		{"POST", "locks/verify", `{}`, 200, `{"ours":[{"id":"id1","path":"a.bin","locked_at":"2001-09-09T01:46:40Z",` +
			`"owner":{"name":"alice"}}],"theirs":[{"id":"id0","path":"b.bin","locked_at":"2001-09-09T01:46:40Z",` +
			`"owner":{"name":"carol"}}]}`},
		{"POST", "locks/id0/unlock", `{}`, 403, "the lock is carol's"},
		{"POST", "locks/id0/unlock", `{"force":true}`, 200, `{"lock":{"id":"id0","path":"b.bin",` +
			`"locked_at":"2001-09-09T01:46:40Z","owner":{"name":"carol"}}}`},
	} {
		response, body := s.do(c.method, "/team/app/info/lfs/"+c.path, c.body, alice, document)
		if response.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %s %s, want %d %s", c.method, c.path, response.Status, body, c.status, c.want)
		}
	}
	if log := s.log.String(); !strings.Contains(log, "path=b.bin owner=carol") {
		t.Errorf("log = %s, want the lock of another caller", log)
	}
	if response, body := s.do("GET", "/team/app/info/lfs/locks?limit=1", "", bob); response.StatusCode != 200 ||
		!strings.Contains(body, `"next_cursor":"more"`) {
		t.Errorf("first part of a list: %s %s, want a cursor", response.Status, body)
	}
}

// BenchmarkLFSBatch answers a batch of 10,000 objects that are all present.
func BenchmarkLFSBatch(b *testing.B) {
	var text bytes.Buffer
	objects := make([]lfs.Object, lfs.MaxBatch)
	for i := range objects {
		objects[i] = objectOf(strconv.Itoa(i))
	}
	request := batchOf("download", objects...)
	states := make([]lfs.Status, len(objects))
	for i := range states {
		states[i].State = lfs.Present
	}
	b.ReportAllocs()
	for b.Loop() {
		_, read, err := wire.ReadBatch(strings.NewReader(request))
		if err != nil {
			b.Fatal(err)
		}
		w := wire.BatchWriter{Transfer: "basic", Objects: "https://git.example/team/app.git/info/lfs/objects"}
		p := w.Begin(text.AvailableBuffer())
		for i, o := range read {
			p = w.Append(p, o, &states[i])
		}
		_ = w.End(p)
	}
}
