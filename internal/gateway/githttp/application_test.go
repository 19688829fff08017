package githttp_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// application says that it answered, and what it was asked for.
type application struct{}

func (application) Has(path string) bool {
	return path == "/-/profile" || strings.HasPrefix(path, "/-/api/")
}

func (application) Serve(_ context.Context, w http.ResponseWriter, r *http.Request,
	_ clients.Source) githttp.Served {
	served := githttp.Served{Status: 200, Attrs: []slog.Attr{slog.String("pool", "blue"), slog.String("worker", "w0")}}
	if r.URL.Path == "/half" {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		served.Err, served.Cut = fault.New(fault.Internal, "the worker broke off"), true
		return served
	}
	n, _ := io.WriteString(w, "app "+r.URL.RequestURI()+" "+r.Header.Get("Authorization"))
	served.Bytes = int64(n)
	return served
}

// TestApplication sends requests to a gateway with an application. Git requests and those of the gateway never reach
// the application. All others do, with their credentials and without the gateway's cache headers.
func TestApplication(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{}, options{auth: onlyApp, pages: sitePages, application: application{}})
	const id = "0123456789abcdef0123456789abcdef01234567"
	for path, own := range map[string]bool{
		"/": true, "/users/sign_in?x=1": true, "/team/app": true, "/team/app/-/refs/main/logs": true,
		"/team/app.git/info/lfs/objects/batch": true,
		"/team/app/objects/list":               true, "/-/profile": true, "/HEADlines": true,
		"/team/objects/ab/cd": true,
		"/.apis/x":            true,
		"/team/none/info/refs?service=git-upload-pack": false, "/team/none.git/info/refs": false,
		"/team/none/git-upload-pack":  false,
		"/team/none/git-receive-pack": false, "/team/none.git/HEAD": false, "/team/none/-/commits/HEAD": true,
		"/team/none/objects/info/packs":               false,
		"/team/none/objects/" + id[:2] + "/" + id[2:]: false, "/team/none/objects/pack/pack-" + id + ".idx": false,
		"/-/": false, "/-/search": false, "/-/none": false, "/.api/none": false, "/-/api/v1/wait?repo=team/app": false,
		"/-":          false,
		"//-/metrics": false, "/./-/metrics": false, "/x/../-/metrics": false, "/%2e%2e/-/profile": false,
		"/-;a=b/metrics": false, "/x/..;/-/metrics": false,
		"/%5C-%5Cmetrics": false, "//.api/x": false, "/.api//": false, "//-": false,
		"/team//-/x": true, "/x;y/../app": true, "/a/../-x": true, "/..": true, "/.well-known/x": true,
	} {
		request, err := http.NewRequest("GET", "http://"+s.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer whoever")
		request.Header.Set("Accept", "text/html")
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := string(body) == "app "+path+" Bearer whoever"; got != own {
			t.Errorf("%s: %s %q", path, response.Status, body)
		}
		if own && response.Header.Get("Cache-Control") != "" {
			t.Errorf("%s: %v", path, response.Header)
		}
	}
	c := s.dial()
	c.send("GET /half HTTP/1.1\r\nHost: git.example\r\n\r\n")
	if _, body, err := c.answer(); err == nil {
		t.Errorf("incomplete answer %q has no error, want one", body)
	}
}
