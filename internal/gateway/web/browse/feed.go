package browse

import (
	"encoding/xml"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const feedCommits = 30

// atomFeed is a feed (RFC 4287).
type atomFeed struct {
	XMLName xml.Name    `xml:"http://www.w3.org/2005/Atom feed"`
	ID      string      `xml:"id"`
	Title   string      `xml:"title"`
	Updated string      `xml:"updated"`
	Link    atomLink    `xml:"link"`
	Entries []atomEntry `xml:"entry"`
}

type atomLink struct {
	Rel  string `xml:"rel,attr,omitempty"`
	Href string `xml:"href,attr"`
}

type atomEntry struct {
	ID      string   `xml:"id"`
	Title   string   `xml:"title"`
	Updated string   `xml:"updated"`
	Author  string   `xml:"author>name"`
	Link    atomLink `xml:"link"`
	Content string   `xml:"content"`
}

// feed sends the newest commits as a feed.
func (q *request) feed() (*content, error) {
	list, err := q.commits(&packhorsev1.LogRequest{Limit: feedCommits})
	if err != nil {
		return nil, err
	}
	address := func(path string) string { return q.v.Address(strings.TrimPrefix(path, "/")) }
	feed := atomFeed{ID: address(q.link("feed", q.here())), Title: page.Visible(q.repo.String() + " " + q.here()),
		Link: atomLink{Href: address(q.link("log", q.here()))}}
	for _, c := range list {
		at := time.Unix(c.GetCommitter().GetSeconds(), 0).UTC().Format(time.RFC3339)
		if feed.Updated == "" {
			feed.Updated = at
		}
		to := address(q.link("commit", c.GetOid()))
		feed.Entries = append(feed.Entries, atomEntry{ID: to, Title: page.Visible(subjectOf(c)), Updated: at,
			Author: page.Visible(string(c.GetAuthor().GetName())), Link: atomLink{Href: to},
			Content: visibleLines(string(c.GetMessage()))})
	}
	text, err := xml.MarshalIndent(&feed, "", " ")
	return &content{raw: &rawContent{contentType: "application/atom+xml; charset=utf-8",
		text: append([]byte(xml.Header), text...)}}, err
}

// visibleLines is page.Visible for text of several lines.
func visibleLines(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = page.Visible(line)
	}
	return strings.Join(lines, "\n")
}
