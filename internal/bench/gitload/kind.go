package gitload

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// RequestKind returns the kind of a request of smart HTTP: info, ls-refs, fetch, push-info, push or other. It reads
// the body of a request to upload-pack and replaces it.
func RequestKind(r *http.Request) string {
	switch _, service, _ := strings.Cut(r.URL.RawQuery, "service="); {
	case strings.HasSuffix(r.URL.Path, "/info/refs") && service == "git-upload-pack":
		return "info"
	case strings.HasSuffix(r.URL.Path, "/info/refs") && service == "git-receive-pack":
		return "push-info"
	case strings.HasSuffix(r.URL.Path, "/git-receive-pack"):
		return "push"
	case !strings.HasSuffix(r.URL.Path, "/git-upload-pack"):
		return "other"
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "other"
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if r.Header.Get("Content-Encoding") == "gzip" {
		if z, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, _ = io.ReadAll(z)
		}
	}
	if bytes.Contains(body[:min(32, len(body))], []byte("command=ls-refs")) {
		return "ls-refs"
	}
	return "fetch"
}
