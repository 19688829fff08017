package control

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// TestHostileNames checks that Create and Delete, for every name, change only the named repository below the root.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	p.create("safe")
	long := strings.Repeat("a", 2000)
	for _, name := range []string{
		"..", ".", "/", "", "../safe", "safe/../../x", "a/./b", "a//b", "a\\..\\b", "a\x00b", "a\nb", "a\x7fb", "-/x", long,
		strings.Repeat("a/", 600) + "x",
		"%2e%2e/x", "%2E%2e", "x/%2f..%2fetc", "x%00", "%2fetc", ".packhorse", ".packhorse/new", ".git", "x/.git", "x.git/y",
		"-x", "x/-y", "x.lock",
		strings.Repeat("a", 251), strings.Repeat("a/", 64) + "x",
	} {
		_, err := p.repositories.Create(t.Context(), connect.NewRequest(&packhorsev1.CreateRequest{Repository: name}))
		p.code(err, connect.CodeInvalidArgument)
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("Create %.20q: an error of %d bytes", name, len(err.Error()))
		}
		_, err = p.repositories.Get(t.Context(), connect.NewRequest(&packhorsev1.GetRequest{Repository: name}))
		if code := connect.CodeOf(err); code != connect.CodeInvalidArgument && code != connect.CodeNotFound {
			t.Errorf("Get %.80q: %v", name, err)
		}
		_, err = p.repositories.Delete(t.Context(), connect.NewRequest(&packhorsev1.DeleteRequest{Repository: name}))
		if code := connect.CodeOf(err); code != connect.CodeInvalidArgument && code != connect.CodeNotFound {
			t.Errorf("Delete %.80q: %v", name, err)
		}
	}
	for _, name := range []string{"/etc", "//tmp/x/", "100%", "%zz"} { // a path below the root like any other
		made := p.create(name)
		path := filepath.Join(p.dir, strings.Trim(name, "/")+".git")
		if _, err := os.Stat(path); err != nil || made.GetPath() != strings.Trim(name, "/")+".git" {
			t.Errorf("%s is made as %s: %v", name, made.GetPath(), err)
		}
		if _, err := p.repositories.Delete(t.Context(),
			connect.NewRequest(&packhorsev1.DeleteRequest{Repository: name})); err != nil {
			t.Error(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(p.dir, "*.git"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "safe.git" {
		t.Errorf("%q are left, %v", left, err)
	}
}

// A token is good for the list that it came from.
func TestForeignPageTokens(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	for _, name := range []string{"a", "b"} {
		p.create(name)
		repo := gittest.At(t, filepath.Join(p.dir, name+".git"))
		blob := repo.GitIn(name, "hash-object", "-w", "--stdin")
		tree := repo.GitIn(fmt.Sprintf("100644 blob %s\tx\n100644 blob %s\ty\n", blob, blob), "mktree")
		id := repo.Git("commit-tree", "-m", "x", repo.GitIn("040000 tree "+tree+"\td\n", "mktree"))
		repo.Git("update-ref", "refs/heads/main", id)
		repo.Git("update-ref", "refs/heads/next", id)
	}
	list := func(r *packhorsev1.RefServiceListRequest) (token string, err error) {
		stream, err := p.refs.List(t.Context(), connect.NewRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		for stream.Receive() {
			token = stream.Msg().GetNextPageToken()
		}
		return token, stream.Err()
	}
	token, err := list(&packhorsev1.RefServiceListRequest{Repository: "a", Prefix: "refs/", PageSize: 1})
	if err != nil || token == "" {
		t.Fatal(err)
	}
	if _, err := list(&packhorsev1.RefServiceListRequest{Repository: "/a/", Prefix: "refs/", PageSize: 1,
		PageToken: token}); err != nil {
		t.Error(err)
	}
	for what, r := range map[string]*packhorsev1.RefServiceListRequest{
		"another repository's": {Repository: "b", Prefix: "refs/", PageToken: token},
		"another prefix's":     {Repository: "a", Prefix: "refs/heads/", PageToken: token},
		"another pattern's":    {Repository: "a", Prefix: "refs/", Pattern: "**", PageToken: token},
		"a cut one":            {Repository: "a", Prefix: "refs/", PageToken: token[:len(token)/2]},
		"no base64":            {Repository: "a", Prefix: "refs/", PageToken: "!" + token},
		"of another kind":      {Repository: "a", PageToken: pageToken(repositoryToken, "", "a")},
		"a very long one":      {Repository: "a", PageToken: strings.Repeat("A", 1<<20)},
	} {
		if _, err := list(r); connect.CodeOf(err) != connect.CodeInvalidArgument || len(err.Error()) > 300 {
			t.Errorf("a token that is %s: %.300v", what, err)
		}
	}
	tree := func(repository, token string) (*packhorsev1.TreeResponse, error) {
		r := &packhorsev1.TreeRequest{Repository: repository, PageSize: 1, PageToken: token,
			Path: &packhorsev1.RevisionPath{Revision: "main", Path: "d"}}
		answer, err := p.objects.Tree(t.Context(), connect.NewRequest(r))
		if err != nil {
			return nil, err
		}
		return answer.Msg, nil
	}
	first, err := tree("a", "")
	if err != nil {
		t.Fatal(err)
	}
	if next, err := tree("a", first.GetNextPageToken()); err != nil || next.GetOid() != first.GetOid() {
		t.Errorf("%v, %v", next, err)
	}
	for _, token := range []string{first.GetNextPageToken(), "AQ", "!!!", strings.Repeat("A", 1<<16)} {
		if _, err := tree("b", token); connect.CodeOf(err) != connect.CodeInvalidArgument &&
			connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("the token %.40q in another repository: %v", token, err)
		}
	}
}

// post sends JSON, and gives the answer's status and text.
func post(t *testing.T, client *http.Client, url, body string) (int, string) {
	t.Helper()
	response, err := client.Post(url, "application/json; charset=utf-8", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// TestBadJSON checks that errors in JSON use the names of the caller, and that a mistyped field is an error.
func TestBadJSON(t *testing.T) {
	t.Parallel()
	_, address := realPort(t, "tcp", Options{})
	h1 := new(http.Transport)
	t.Cleanup(h1.CloseIdleConnections)
	client, base := &http.Client{Transport: h1}, "http://"+address
	for body, says := range map[string]string{
		`{"repository": 1}`:                      "string field repository",
		`{"repository": "app", "nmae": "main"}`:  `nmae`,
		`{"repository": "a", "repository": "b"}`: `repository`,
		`[]`:                                     "not a ResolveRequest",
		`{`:                                      "not a ResolveRequest",
		``:                                       "{}",
		`{"repository": "\ud800"}`:               "not a ResolveRequest",
		`{"` + strings.Repeat("x", 10_000):       "not a ResolveRequest",
	} {
		status, text := post(t, client, base+packhorsev1connect.RefServiceResolveProcedure, body)
		if status != http.StatusBadRequest || !strings.Contains(text, `"invalid_argument"`) ||
			!strings.Contains(text, says) ||
			strings.Contains(text, "packhorsev1") || strings.Contains(text, "proto:") || len(text) > 5000 {
			t.Errorf("%.80s: %d %.300s", body, status, text)
		}
	}
	status, text := post(t, client, base+packhorsev1connect.RepositoryServiceDeleteProcedure,
		`{"repository": "app", "incarnaton": "old"}`)
	if status != http.StatusBadRequest || !strings.Contains(text, "incarnaton") {
		t.Errorf("a mistyped condition: %d %s", status, text)
	}
	if status, text := post(t, client, base+packhorsev1connect.RefServiceResolveProcedure,
		`{"repository": "app", "name": "main"}`); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	for message, status := range map[string]int{
		"base64=1&message=!!!!":  http.StatusBadRequest,
		"base64=1&message=e30=":  http.StatusBadRequest, // {}, which names nothing
		"base64=1&message=e30==": http.StatusBadRequest,
		"base64=1&message=eyJyZXBvc2l0b3J5IjogImFwcCIsICJuYW1lIjogIm1haW4ifQ": http.StatusOK,
		"message=" + url.QueryEscape(`{"repository": "app", "name": "main"}`): http.StatusOK,
	} {
		response, err := client.Get(base + packhorsev1connect.RefServiceResolveProcedure + "?connect=v1&encoding=json&" +
			message)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != status {
			t.Errorf("%s: %d %s", message, response.StatusCode, text)
		}
	}
}

// say sends bytes over a new connection, and returns all bytes that it receives until the connection is closed.
func say(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Errorf("the connection stays open after %.200q", text)
	}
	return string(answer)
}

// TestBadChunks checks that invalid chunks are reported as mistakes of the caller.
func TestBadChunks(t *testing.T) {
	t.Parallel()
	_, address := realPort(t, "tcp", Options{})
	for _, chunks := range []string{"zz\r\n{}\r\n0\r\n\r\n", "fffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
		"-1\r\n{}\r\n0\r\n\r\n", "2\r\n{}xx\r\n0\r\n\r\n"} {
		answer := say(t, address, "POST "+packhorsev1connect.RefServiceResolveProcedure+" HTTP/1.1\r\nHost: localhost\r\n"+
			"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
		if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || !strings.Contains(answer, `"invalid_argument"`) {
			t.Errorf("%q: %s", chunks, answer)
		}
	}
}

// A request for a side channel has no body. One that is announced is not waited for, whether it comes or not.
func TestUpgradeWithABody(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	channels := sidechannel.NewServer(sidechannel.Options{Pump: bulk.NewPump(bulk.PumpOptions{}), Max: 10,
		Metrics: sidechannel.NewMetrics(nil), Log: log})
	t.Cleanup(func() { channels.Close() })
	_, address := realPort(t, "tcp", Options{Channels: channels, Stall: 100 * time.Millisecond})
	for _, rest := range []string{
		"Content-Length: 5\r\n\r\n", "Content-Length: 5\r\nConnection: close\r\n\r\nhello",
		"Content-Length: 99999999\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n",
		"Transfer-Encoding: chunked\r\n\r\n5\r\nhe", "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
		"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		answer := say(t, address,
			fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: packhorse-channel/1\r\n%s",
				sidechannel.Path, rest))
		if answer != "" && !strings.HasPrefix(answer, "HTTP/1.1 400 ") || strings.Contains(answer, "101 Switching") {
			t.Errorf("%q: %s", rest, answer)
		}
	}
}
