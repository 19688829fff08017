// Package legacy translates addresses of cgit, gitweb and Gitiles into those of pages, so that links continue to work
// when a server replaces them. It does no I/O: the page finds out whether what an address names exists.
package legacy

import (
	"cmp"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
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
	file := page.Unescape(rest)
	revision := first(query["id"], query["h"])
	switch name {
	case "about", "summary", "stats":
		return page.Address(repo, ""), true
	case "refs":
		return page.Address(repo, "refs"), true
	case "atom":
		return page.Address(repo, "feed", first(query["h"])), true
	case "tag":
		return page.Address(repo, "commit", first(query["h"], query["id"])), true
	case "patch", "rawdiff":
		return page.Address(repo, "commit", revision) + ".patch", true
	case "snapshot":
		return snapshot(repo, file)
	case "diff":
		if query["id2"] != "" {
			return page.Address(repo, "compare") + "/" + page.Path(query["id2"]) + ".." + page.Path(revision), true
		}
		return page.Address(repo, "commit", revision), true
	case "log":
		if file != "" {
			return page.Address(repo, "history", revision, file), true
		}
	case "plain", "blob":
		name = "raw"
	}
	return page.Address(repo, name, revision, file), true
}

// snapshot translates the name of an archive, NAME-REVISION.FORMAT.
func snapshot(repo, name string) (string, bool) {
	base := strings.TrimSuffix(path.Base(page.Unescape(repo)), ".git")
	name = strings.TrimPrefix(name, base+"-")
	for _, format := range []string{".tar.gz", ".tar.zst", ".tar", ".zip", ".tgz", ".tar.xz", ".tar.bz2"} {
		if revision, ok := strings.CutSuffix(name, format); ok {
			if format == ".tgz" || format == ".tar.xz" || format == ".tar.bz2" {
				format = ".tar.gz" // what there is instead
			}
			return page.Address(repo, "archive", revision) + format, true
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

// gitweb translates the fields p (repository), a (action), h (ID), hb (commit) and f (path) of a query.
func gitweb(query map[string]string) (string, bool) {
	repo := page.Path(query["p"])
	id, commit, file := query["h"], first(query["hb"]), query["f"]
	switch query["a"] {
	case "", "summary":
		return page.Address(repo, ""), true
	case "heads", "tags", "remotes":
		return page.Address(repo, "refs"), true
	case "commit", "commitdiff", "tag":
		return page.Address(repo, "commit", first(id)), true
	case "commitdiff_plain", "patch", "patches":
		return page.Address(repo, "commit", first(id)) + ".patch", true
	case "shortlog", "log":
		return page.Address(repo, "log", first(id, query["hb"])), true
	case "tree", "blob", "history", "blame", "blame_incremental", "blob_plain":
		kind := cmp.Or(map[string]string{"blob": "file", "blame_incremental": "blame", "blob_plain": "raw"}[query["a"]],
			query["a"])
		if query["hb"] == "" && query["a"] == "tree" && file == "" {
			commit = first(id)
		}
		return page.Address(repo, kind, commit, file), true
	case "atom", "rss":
		return page.Address(repo, "feed", first(id)), true
	case "snapshot":
		format := ".tar.gz"
		if query["sf"] == "zip" {
			format = ".zip"
		}
		return page.Address(repo, "archive", first(id)) + format, true
	case "search":
		return page.Address(repo, "log") + "/" + page.Path(first(id)) + "?text=" + url.QueryEscape(query["s"]), true
	case "blobdiff", "blobdiff_plain":
		return page.Address(repo, "compare") + "/" + page.Path(first(query["hpb"])) + ".." + page.Path(commit), true
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
	revision, file, _ := strings.Cut(page.Unescape(rest), ":/")
	return gitweb(map[string]string{"p": page.Unescape(repo), "a": action, "h": revision, "hb": revision, "f": file,
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
		return page.Address(repo, "refs"), true
	case view == "archive":
		return page.Address(repo, "archive") + "/" + rest, true
	case kind == "":
		return "", false
	case rest == "":
		return page.Address(repo, ""), true
	case strings.HasSuffix(rest, "%5E%21") || strings.HasSuffix(rest, "^!"):
		return page.Address(repo, "commit") + "/" + strings.TrimSuffix(strings.TrimSuffix(rest, "%5E%21"), "^!"), true
	case strings.Contains(rest, ".."):
		return page.Address(repo, "compare") + "/" + rest, true
	case strings.EqualFold(query["format"], "TEXT"):
		return page.Address(repo, "raw") + "/" + rest, true
	case view == "log":
		return page.Address(repo, "log") + "/" + rest, true // the page separates revision and path
	case view == "" && isID(rest):
		return page.Address(repo, "commit", rest), true
	}
	return page.Address(repo, kind) + "/" + rest, true
}

// isID reports whether text is a full object ID.
func isID(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}
