package sqlx

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/mqbridge/mqb/route"
)

// statement is what writes a row: an insert_query taken apart, or the default.
type statement struct {
	// letters: not the user's insert_query, but the statement of dead letters.
	letters bool
	// sql has $1, $2… in place of the tokens; nil tokens is the whole payload as $1.
	sql    string
	tokens []route.Token

	// head, group and tail are set for INSERT … VALUES (…) … whose one row of
	// values can stand several times in one statement with the same meaning: sql
	// is head + group + tail. params are the places of the parameters in group.
	head, group, tail string
	params            [][2]int
	// once: the server refuses such a statement when a key comes twice in it (DO UPDATE).
	once bool
	// table is what an INSERT INTO writes to, as the query spells it; "" for any
	// other statement.
	table string
	// copyTo is "t (a, b)" when the values are the tokens themselves and nothing
	// follows them, so that COPY writes the same rows; copyColumns is "a, b",
	// or "*" if the query names none.
	copyTo, copyColumns string
}

// Tokens that no configuration can write: the payload as it is, and an object of
// all metadata.
const (
	wholeNamespace  = "whole payload"
	letterNamespace = "all metadata"
)

// wholePayload is the statement of a sink that has only a table.
func wholePayload(table tableName) *statement {
	name := table.quoted()
	return &statement{
		sql:   "INSERT INTO " + name + ` ("payload") VALUES ($1)`,
		table: name, copyTo: name + ` ("payload")`, copyColumns: `"payload"`,
	}
}

// parseStatement takes a query with tokens apart.
func parseStatement(query string) (*statement, error) {
	q, err := route.ParseSQL(strings.TrimRight(strings.TrimSpace(query), "; \n\t\r"))
	if err != nil {
		return nil, err
	}
	for i, s := range q.Segments {
		if i > 0 && s != "" && (isDigit(s[0]) || isName(s[0])) {
			return nil, fmt.Errorf("%.20q stands right behind a token", s)
		}
		for _, ns := range []string{"payload", "metadata", "message"} {
			if strings.Contains(s, "${"+ns+":") {
				return nil, errors.New("a token stands inside quotes or a comment: take the quotes away, its value is passed as a typed parameter")
			}
		}
	}
	if len(q.Tokens) == 0 {
		return nil, errors.New("no token, so that every row would be the same: use ${payload:field}")
	}
	s := &statement{sql: q.Text(), tokens: q.Tokens}
	words := wordsOf(s.sql)
	for _, w := range words {
		if w.kind == wordOther && w.text == ";" {
			return nil, errors.New("one statement only: there is a ; inside")
		}
	}
	if len(words) > 2 && words[0].is("INSERT") && words[1].is("INTO") {
		s.table = s.sql[words[2].from:words[1+tableWords(words[2:])].to]
		s.findValues(words)
	}
	return s, nil
}

// tableWords is how many words "t" or "s.t" are, at the start of words.
func tableWords(words []word) int {
	if len(words) > 2 && words[1].text == "." {
		return 3
	}
	return 1
}

// findValues looks for INSERT INTO … VALUES ( … ) … and sets what follows from it.
func (s *statement) findValues(words []word) {
	open := 0
	for i, depth := 2, 0; i < len(words) && open == 0; i++ {
		depth += words[i].nesting()
		switch {
		case depth == 0 && words[i].is("VALUES"):
			open = i + 1
		case words[i].kind == wordParam, words[i].is("SELECT"):
			return
		}
	}
	if open == 0 || open == len(words) || words[open].text != "(" {
		return
	}
	var params [][2]int
	plain, end := true, 0
	for i, depth := open, 0; i < len(words) && end == 0; i++ {
		depth += words[i].nesting()
		switch inner := i - open; {
		case depth == 0:
			end = i
		case words[i].is("SELECT"):
			return // in a longer list it would not see the rows before it
		case words[i].kind == wordParam:
			params = append(params, [2]int{words[i].from - words[open].from, words[i].to - words[open].from})
			plain = plain && inner%2 == 1
		case inner > 0:
			plain = plain && inner%2 == 0 && words[i].text == ","
		}
	}
	if end == 0 || len(params) == 0 {
		return
	}
	if plain && end == len(words)-1 {
		s.setCopy(words[2 : open-1])
	}
	for i, w := range words[end+1:] {
		// A second row of values; parameters behind them; a query, which would not
		// see the rows before it.
		if i == 0 && w.text == "," || w.kind == wordParam || w.is("SELECT") {
			return
		}
		s.once = s.once || w.is("UPDATE")
	}
	s.head, s.group, s.tail = s.sql[:words[open].from], s.sql[words[open].from:words[end].to], s.sql[words[end].to:]
	s.params = params
}

// setCopy takes "t" or "s.t", with or without a list of columns, from the words
// between INTO and VALUES; anything else (an alias, OVERRIDING) has no COPY form.
func (s *statement) setCopy(target []word) {
	if len(target) == 0 {
		return // "INSERT INTO VALUES": the server says what is missing
	}
	n := tableWords(target)
	if n == len(target) {
		s.copyTo, s.copyColumns = s.table, "*"
		return
	}
	last := target[len(target)-1]
	if target[n].text != "(" || last.text != ")" {
		return
	}
	s.copyColumns = s.sql[target[n].to:last.from]
	s.copyTo = s.table + " (" + s.copyColumns + ")"
}

// of names the statement for people.
func (s *statement) of() string {
	if s.letters {
		return "the statement of dead letters"
	}
	return "the insert_query"
}

// width is the number of values of a row.
func (s *statement) width() int { return max(1, len(s.tokens)) }

// maxRows is how many rows one statement is made for: more saves little and
// takes longer to plan.
const maxRows = 128

// rows is the most rows sqlOf may be asked for; 1 if the statement is to be run
// once a row. The protocol counts parameters in 16 bits.
func (s *statement) rows() int {
	if s.group == "" {
		return 1
	}
	return max(1, min(maxRows, 65535/s.width()))
}

// sqlOf is the statement for n rows; the parameters of a row follow those of the
// row before.
func (s *statement) sqlOf(n int) string {
	if n == 1 {
		return s.sql
	}
	b := make([]byte, 0, len(s.sql)+n*(len(s.group)+4*len(s.params)))
	b = append(b, s.head...)
	for r := range n {
		if r > 0 {
			b = append(b, ',')
		}
		at := 0
		for i, p := range s.params {
			b = append(b, s.group[at:p[0]]...)
			b = strconv.AppendInt(append(b, '$'), int64(r*s.width()+i+1), 10)
			at = p[1]
		}
		b = append(b, s.group[at:]...)
	}
	return string(append(b, s.tail...))
}
