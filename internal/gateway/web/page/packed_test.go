package page

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	g "maragu.dev/gomponents"
)

// A packed page is the same page, compressed and not.
func TestSendPacked(t *testing.T) {
	t.Parallel()
	s, err := NewSite(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	random := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int{0, 1, 100, 70_000, 3_000_000} {
		text := make([]byte, size)
		for i := range text {
			text[i] = "abcdefgh<>&\n\x00\xff"[random.IntN(3+random.IntN(11))]
		}
		main, err := Pack(g.Raw(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		head := Head{Title: strings.Repeat("title ", 1+size/10)} // more than one block
		pages := map[string][]byte{}
		for accept, compressed := range map[string]bool{"": false, "gzip": true, "br, GZIP;q=0.5": true, "gzip;q=0": false,
			"gzip; q=0.000": false, "deflate, gzip ;q=1, *;q=0": true, "identity": false, "xgzip": false} {
			r := httptest.NewRequest(http.MethodGet, "/a/", nil)
			r.Header.Set("Accept-Encoding", accept)
			w := httptest.NewRecorder()
			if err := s.SendPacked(w, r, "tree", head, &main); err != nil {
				t.Fatal(err)
			}
			if isCompressed := w.Header().Get("Content-Encoding") == "gzip"; isCompressed != compressed {
				t.Errorf("Accept-Encoding: %s: compressed is %v, want %v", accept, isCompressed, compressed)
			}
			if w.Header().Get("Vary") != "Accept-Encoding" {
				t.Errorf("Accept-Encoding: %s: Vary is %q", accept, w.Header().Get("Vary"))
			}
			body := w.Body.Bytes()
			if compressed {
				unpacked, err := gzip.NewReader(w.Body)
				if err == nil {
					body, err = io.ReadAll(unpacked)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			pages[accept] = body
			if !bytes.Contains(body, text) || !bytes.HasSuffix(body, []byte("</html>")) {
				t.Errorf("Accept-Encoding: %s: the page of %d bytes is another one", accept, len(body))
			}
		}
		for accept, body := range pages {
			if !bytes.Equal(body, pages[""]) {
				t.Errorf("Accept-Encoding: %s: another page", accept)
			}
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/a/-/log/main?text=secret", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	main, err := Pack(g.Text("secret"))
	if err == nil {
		err = s.SendPacked(w, r, "log", Head{}, &main)
	}
	if err != nil || w.Header().Get("Content-Encoding") != "" {
		t.Errorf("a page that repeats its query: %v, %q, want no compression", err, w.Header().Get("Content-Encoding"))
	}
}

// Scripts and styles are sent compressed, images as they are.
func TestAssetsAreCompressed(t *testing.T) {
	t.Parallel()
	s, err := NewSite(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, path := range s.assetPaths {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept-Encoding", "gzip")
		w := httptest.NewRecorder()
		if err := s.Asset(w, r); err != nil {
			t.Fatal(err)
		}
		body, err := w.Body.Bytes(), error(nil)
		if isText := !strings.HasSuffix(name, ".svg"); isText != (w.Header().Get("Content-Encoding") == "gzip") {
			t.Errorf("%s: Content-Encoding is %q", name, w.Header().Get("Content-Encoding"))
		} else if isText {
			unpacked, err2 := gzip.NewReader(w.Body)
			if err2 != nil {
				t.Fatal(err2)
			}
			body, err = io.ReadAll(unpacked)
		}
		if err != nil || !bytes.Equal(body, s.assets[path]) {
			t.Errorf("%s: %d bytes, %v, want %d", name, len(body), err, len(s.assets[path]))
		}
	}
}
