// Package legacy translates addresses of cgit, gitweb and Gitiles into those of pages, so that links continue to work
// when a server replaces them. It does no I/O: the page finds out whether what an address names exists.
package legacy

import (
	"cmp"
	"net/url"
	"path"
	"slices"
	"strings"
)

// prefixes are the places at which these programs are often installed.
var prefixes = []string{"/cgit/", "/cgit.cgi/", "/cgi-bin/cgit/", "/cgi-bin/cgit.cgi/", "/gitweb/", "/gitweb.cgi/",
	"/cgi-bin/gitweb.cgi/", "/plugins/gitiles/"}

// Find returns the path and query of the page for an old address. ok is false for other addresses.
func Find(u *url.URL) (to string, ok bool) {
	at := u.EscapedPath()
	if strings.Contains(at, "/-/") { // a page of this server
		return "", false
	}
	for _, prefix := range prefixes {
		if rest, found := strings.CutPrefix(at+"/", prefix); found {
			at = "/" + strings.TrimSuffix(rest, "/")
			break
		}
	}
	query := values(u.RawQuery)
	if query["p"] != "" {
		return gitweb(query)
	}
	for _, find := range []func(string, map[string]string) (string, bool){gitiles, cgit, gitwebPath} {
		if to, ok := find(at, query); ok {
			return to, true
		}
	}
	return "", false
}

// IsContent reports whether an old address is that of a file or feed, which not only browsers request.
func IsContent(u *url.URL) bool {
	return slices.ContainsFunc([]string{"/plain/", "/blob_plain/", "/+/", "/+archive/", "/snapshot/", "/atom/", "/patch/"},
		func(part string) bool { return strings.Contains(u.Path, part) }) ||
		u.Path == "/" && strings.Contains(u.RawQuery, "p=")
}

// values parses a query whose parts are separated by & or, as in gitweb, by semicolons. Of several values the first one
// counts.
func values(query string) map[string]string {
	list := map[string]string{}
	for part := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, _ := strings.Cut(part, "=")
		if value, err := url.QueryUnescape(value); err == nil && list[key] == "" {
			list[key] = value
		}
	}
	return list
}

// page returns the address of a page. parts are unescaped; empty ones at the end are left out.
func page(repo, kind string, parts ...string) string {
	to := "/" + strings.Trim(repo, "/")
	if kind == "" {
		return to + "/"
	}
	to += "/-/" + kind
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	for _, part := range parts {
		to += "/" + escape(strings.Trim(part, "/"))
	}
	return to
}

// escape escapes the components of a path.
func escape(text string) string {
	parts := strings.Split(text, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

// first returns the first text that is not empty; HEAD if all are.
func first(list ...string) string {
	for _, text := range list {
		if text != "" {
			return strings.TrimPrefix(strings.TrimPrefix(text, "refs/heads/"), "refs/tags/")
		}
	}
	return "HEAD"
}

// cgitPages are the pages of cgit.
var cgitPages = []string{"about", "atom", "blame", "blob", "commit", "diff", "log", "patch", "plain", "rawdiff", "refs",
	"snapshot", "stats", "summary", "tag", "tree"}

// cgit translates /REPO/PAGE/PATH?h=BRANCH&id=COMMIT&id2=COMMIT.
func cgit(at string, query map[string]string) (string, bool) {
	repo, name, rest := cut(at, cgitPages)
	if name == "" {
		return "", false
	}
	file := unescape(rest)
	revision := first(query["id"], query["h"])
	switch name {
	case "about", "summary", "stats":
		return page(repo, ""), true
	case "refs":
		return page(repo, "refs"), true
	case "atom":
		return page(repo, "feed", first(query["h"])), true
	case "tag":
		return page(repo, "commit", first(query["h"], query["id"])), true
	case "patch", "rawdiff":
		return page(repo, "commit", revision) + ".patch", true
	case "snapshot":
		return snapshot(repo, file)
	case "diff":
		if query["id2"] != "" {
			return page(repo, "compare") + "/" + escape(query["id2"]) + ".." + escape(revision), true
		}
		return page(repo, "commit", revision), true
	case "log":
		if file != "" {
			return page(repo, "history", revision, file), true
		}
	case "plain", "blob":
		name = "raw"
	}
	return page(repo, name, revision, file), true
}

// snapshot translates the name of an archive, NAME-REVISION.FORMAT.
func snapshot(repo, name string) (string, bool) {
	base := strings.TrimSuffix(path.Base(unescape(repo)), ".git")
	name = strings.TrimPrefix(name, base+"-")
	for _, format := range []string{".tar.gz", ".tar.zst", ".tar", ".zip", ".tgz", ".tar.xz", ".tar.bz2"} {
		if revision, ok := strings.CutSuffix(name, format); ok {
			if format == ".tgz" || format == ".tar.xz" || format == ".tar.bz2" {
				format = ".tar.gz" // what there is instead
			}
			return page(repo, "archive", revision) + format, true
		}
	}
	return "", false
}

// cut cuts an address at the first component that is one of names, after the first component.
func cut(at string, names []string) (repo, name, rest string) {
	parts := strings.Split(strings.Trim(at, "/"), "/")
	for i, part := range parts {
		if i > 0 && slices.Contains(names, part) {
			return strings.Join(parts[:i], "/"), part, strings.Join(parts[i+1:], "/")
		}
	}
	return "", "", ""
}

func unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

// gitweb translates the fields p (repository), a (action), h (ID), hb (commit) and f (path) of a query.
func gitweb(query map[string]string) (string, bool) {
	repo := escape(query["p"])
	id, commit, file := query["h"], first(query["hb"]), query["f"]
	switch query["a"] {
	case "", "summary":
		return page(repo, ""), true
	case "heads", "tags", "remotes":
		return page(repo, "refs"), true
	case "commit", "commitdiff", "tag":
		return page(repo, "commit", first(id)), true
	case "commitdiff_plain", "patch", "patches":
		return page(repo, "commit", first(id)) + ".patch", true
	case "shortlog", "log":
		return page(repo, "log", first(id, query["hb"])), true
	case "tree", "blob", "history", "blame", "blame_incremental", "blob_plain":
		kind := cmp.Or(map[string]string{"blob": "file", "blame_incremental": "blame", "blob_plain": "raw"}[query["a"]],
			query["a"])
		if query["hb"] == "" && query["a"] == "tree" && file == "" {
			commit = first(id)
		}
		return page(repo, kind, commit, file), true
	case "atom", "rss":
		return page(repo, "feed", first(id)), true
	case "snapshot":
		format := ".tar.gz"
		if query["sf"] == "zip" {
			format = ".zip"
		}
		return page(repo, "archive", first(id)) + format, true
	case "search":
		return page(repo, "log") + "/" + escape(first(id)) + "?text=" + url.QueryEscape(query["s"]), true
	case "blobdiff", "blobdiff_plain":
		return page(repo, "compare") + "/" + escape(first(query["hpb"])) + ".." + escape(commit), true
	}
	return "", false
}

// gitwebActions are the actions in the paths of gitweb that are not pages of cgit, too.
var gitwebActions = []string{"blob_plain", "blobdiff", "commitdiff", "commitdiff_plain", "heads", "history", "rss",
	"shortlog", "tags", "patches", "blame_incremental"}

// gitwebPath translates /REPO/ACTION/REVISION:/PATH.
func gitwebPath(at string, query map[string]string) (string, bool) {
	repo, action, rest := cut(at, gitwebActions)
	if action == "" {
		return "", false
	}
	revision, file, _ := strings.Cut(unescape(rest), ":/")
	return gitweb(map[string]string{"p": unescape(repo), "a": action, "h": revision, "hb": revision, "f": file,
		"s": query["s"], "sf": query["sf"]})
}

// gitiles translates /REPO/+VIEW/REVISION/PATH.
func gitiles(at string, query map[string]string) (string, bool) {
	repo, view, ok := strings.Cut(strings.Trim(at, "/"), "/+")
	if !ok || repo == "" {
		return "", false
	}
	view, rest, _ := strings.Cut(view, "/")
	rest = strings.TrimSuffix(rest, "/")
	kind := map[string]string{"": "file", "show": "file", "log": "log", "blame": "blame", "doc": "file",
		"diff": "commit"}[view]
	switch {
	case view == "refs":
		return page(repo, "refs"), true
	case view == "archive":
		return page(repo, "archive") + "/" + rest, true
	case kind == "":
		return "", false
	case rest == "":
		return page(repo, ""), true
	case strings.HasSuffix(rest, "%5E%21") || strings.HasSuffix(rest, "^!"):
		return page(repo, "commit") + "/" + strings.TrimSuffix(strings.TrimSuffix(rest, "%5E%21"), "^!"), true
	case strings.Contains(rest, ".."):
		return page(repo, "compare") + "/" + rest, true
	case strings.EqualFold(query["format"], "TEXT"):
		return page(repo, "raw") + "/" + rest, true
	case view == "log":
		return page(repo, "log") + "/" + rest, true // the page separates revision and path
	case view == "" && isID(rest):
		return page(repo, "commit", rest), true
	}
	return page(repo, kind) + "/" + rest, true
}

// isID reports whether text is a full object ID.
func isID(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}
