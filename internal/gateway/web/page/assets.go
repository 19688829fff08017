package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	g "maragu.dev/gomponents"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/markup"
)

//go:embed assets/*
var embedded embed.FS

const assetPath = "/-/assets/"

// loadAssets reads the embedded files, and those of the options. The URL of each changes with its content.
func (s *Site) loadAssets(o Options) error {
	entries, err := embedded.ReadDir("assets")
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := embedded.ReadFile("assets/" + e.Name())
		if err != nil {
			return err
		}
		s.addAsset(e.Name(), e.Name(), data)
	}
	for name, file := range map[string]string{"logo": o.Logo, "own": o.Style, "text": o.Text} {
		if file == "" {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return fault.Wrap(fault.Invalid, "pages."+strings.Replace(name, "own", "style", 1)+": cannot read the file", err)
		}
		switch ext := strings.ToLower(path.Ext(file)); {
		case name == "text":
			text, ok := markup.Markdown(context.Background(), data, markup.Links{})
			if !ok {
				return fault.New(fault.Invalid, "pages.text: %s takes too long to render", file)
			}
			s.Text = g.Raw(text)
		case name == "own":
			s.addAsset(name, "own.css", data)
		case assetTypes[ext] == "" || ext == ".css" || ext == ".js":
			return fault.New(fault.Invalid, "pages.logo: %s is not an SVG, PNG, JPEG or WebP file", file)
		default:
			s.addAsset(name, "logo"+ext, data)
		}
	}
	return nil
}

func (s *Site) addAsset(name, file string, data []byte) {
	sum := sha256.Sum256(data)
	at := assetPath + hex.EncodeToString(sum[:8]) + "/" + file
	s.assets[at], s.assetPaths[name] = data, at
	if ext := path.Ext(file); ext == ".css" || ext == ".js" {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(data) // a buffer does not fail
		_ = w.Close()
		s.compressed[at] = b.Bytes()
	}
}

// assetTypes are the content types by extension. Those of the system may be others.
var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}

// IsAsset reports whether a path is that of an embedded file.
func IsAsset(path string) bool { return strings.HasPrefix(path, assetPath) }

// Asset answers with an embedded file.
func (s *Site) Asset(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	data, ok := s.assets[r.URL.Path]
	if ok {
		h.Add("Vary", "Accept-Encoding")
		if small := s.compressed[r.URL.Path]; small != nil && acceptsGzip(r) {
			h.Set("Content-Encoding", "gzip")
			data = small
		}
		h.Del("Pragma")
		h.Del("Expires")
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else { // a page that is kept longer than this server's last start may name an earlier file
		for at, now := range s.assets {
			if path.Base(at) == path.Base(r.URL.Path) {
				data, ok = now, true
			}
		}
	}
	if !ok {
		return fault.New(fault.NotFound, "page not found")
	}
	h.Set("Content-Type", assetTypes[path.Ext(r.URL.Path)])
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return nil
}

// securityPolicy lets pages load files of this server and nothing else. Inline scripts and styles are forbidden.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " +
	"'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// Secure sets the headers of all pages and assets.
func Secure(h http.Header) {
	h.Set("Content-Security-Policy", securityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
