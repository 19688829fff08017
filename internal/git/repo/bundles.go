package repo

import (
	"fmt"
	"strings"
	"unicode"
)

// Bundles is the list of bundles that the server advertises to clients (git-config(1), uploadpack.advertiseBundleURIs
// and bundle.*; gitprotocol-v2(5), "bundle-uri").
type Bundles struct {
	Offered bool
	Lines   []string // "key=value" in the order of the config
	// Err is the reason why a configured list is not advertised. Clients pass its URIs to other programs, some of which
	// end a URI at a line break or a space. So a URI that could be misread is not sent.
	Err error
}

const (
	advertiseBundles = "uploadpack.advertisebundleuris"
	bundleSection    = "bundle."
)

// bundles reads the list. Git treats an invalid uploadpack.advertiseBundleURIs as true; here it is an error.
func bundles(c Config) Bundles {
	offered, err := c.Bool(advertiseBundles, false)
	if err != nil {
		return Bundles{Err: err}
	}
	if !offered {
		return Bundles{}
	}
	list := Bundles{Offered: true}
	for _, v := range c.variables {
		if !strings.HasPrefix(v.key, bundleSection) {
			continue
		}
		if err := v.checkBundle(); err != nil {
			return Bundles{Err: err}
		}
		list.Lines = append(list.Lines, v.key+"="+v.value)
	}
	return list
}

// maxBundleLine is the maximum length of a line in bytes: it must fit into a pkt-line.
const maxBundleLine = 65516

// checkBundle returns an error if a client could misread the line.
func (v variable) checkBundle() error {
	refuse := func(why string) error { return fmt.Errorf("%.200q in the repository's config %s", v.key, why) }
	switch {
	case v.bare:
		return refuse("has no value")
	case strings.ContainsFunc(v.key+v.value, unicode.IsControl):
		return refuse("contains a control character")
	case strings.Contains(v.key, "="):
		return refuse(`contains a "="`)
	case len(v.key)+1+len(v.value) > maxBundleLine:
		return refuse(fmt.Sprintf("is longer than %d bytes with its value", maxBundleLine))
	case strings.HasSuffix(v.key, ".uri") && !isBundleURI(v.value):
		return refuse(`must be an "http://" or "https://" URI, or a relative one, of printable ASCII without spaces`)
	}
	return nil
}

// isBundleURI reports whether a URI means the same to every client. An absolute path does not: clients read it from
// their own disk, like a "file:" URI.
func isBundleURI(uri string) bool {
	for i := range len(uri) {
		if uri[i] <= ' ' || uri[i] >= 0x7f {
			return false
		}
	}
	if lower := strings.ToLower(uri); strings.HasPrefix(lower, "http://") || strings.HasPrefix(lower, "https://") {
		return true
	}
	first, _, _ := strings.Cut(uri, "/")
	return first != "" && first[0] != '-' && !strings.Contains(first, ":")
}
