package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"net/url"
	"path"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

//go:embed assets/*
var embedded embed.FS

const assetPath = "/-/assets/"

// loadAssets reads the embedded files, by URL. names maps the name of each to its URL, which changes with its content.
func loadAssets() (byURL map[string][]byte, names map[string]string, err error) {
	entries, err := embedded.ReadDir("assets")
	if err != nil {
		return nil, nil, err
	}
	byURL, names = map[string][]byte{}, map[string]string{}
	for _, e := range entries {
		data, err := embedded.ReadFile("assets/" + e.Name())
		if err != nil {
			return nil, nil, err
		}
		sum := sha256.Sum256(data)
		at := assetPath + hex.EncodeToString(sum[:8]) + "/" + e.Name()
		byURL[at], names[e.Name()] = data, at
	}
	return byURL, names, nil
}

// assetTypes are the content types by extension. Those of the system may be others.
var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml"}

// asset answers with an embedded file.
func (p *Pages) asset(w http.ResponseWriter, r *http.Request) error {
	data, ok := p.assets[r.URL.Path]
	if !ok {
		return fault.New(fault.NotFound, "page not found")
	}
	h := w.Header()
	h.Del("Pragma")
	h.Del("Expires")
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Content-Type", assetTypes[path.Ext(r.URL.Path)])
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return nil
}

// securityPolicy lets pages load files of this server and nothing else. Inline scripts and styles are forbidden.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " +
	"'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// secure sets the headers of all pages and assets.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", securityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// searchURL returns the path of the page with the results of a query.
func searchURL(query string) string { return searchPath + "?q=" + url.QueryEscape(query) }
