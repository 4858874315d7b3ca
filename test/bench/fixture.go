package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The fixture is the seven-column orders table that the peers publish figures
// for: about 122 bytes a row as CSV with CRLF ends, one column of quoted JSON.
// The same seed gives the same bytes.

type order struct {
	id                             int
	name, country, amount, created string
	active                         bool
	tier, score                    string
	tags                           []string
}

func orders(n int, yield func(order)) {
	rng := rand.New(rand.NewPCG(42, 42))
	names := []string{"Ada", "Bruno", "Chloe", "Dmitri", "Elena", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Katya", "Liam", "Mona", "Nikhil", "Olga", "Pedro"}
	countries := []string{"DE", "FR", "US", "JP", "BR", "IN", "GB", "ES", "PL", "CA"}
	tiers := []string{"gold", "silver", "bronze"}
	tags := []string{"new", "vip", "promo", "bulk", "trial"}
	at := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := 1; i <= n; i++ {
		at = at.Add(time.Duration(1+rng.IntN(90)) * time.Second)
		rng.Shuffle(len(tags), func(a, b int) { tags[a], tags[b] = tags[b], tags[a] })
		yield(order{
			id: i, name: names[rng.IntN(len(names))], country: countries[rng.IntN(len(countries))],
			amount: fmt.Sprintf("%.2f", 1+rng.Float64()*9999), created: at.Format("2006-01-02T15:04:05Z"),
			active: rng.IntN(2) == 0, tier: tiers[rng.IntN(len(tiers))], score: fmt.Sprintf("%.3f", rng.Float64()*100),
			tags: tags[:1+rng.IntN(3)],
		})
	}
}

// json is the row as the CSV route writes it: strings kept.
func (o order) json() string {
	return fmt.Sprintf(`{"id":"%d","first_name":"%s","country":"%s","amount":"%s","created_at":"%s","active":"%t","attributes":"{\"tier\":\"%s\",\"score\":%s,\"tags\":[\"%s\"]}"}`,
		o.id, o.name, o.country, o.amount, o.created, o.active, o.tier, o.score, strings.Join(o.tags, `\",\"`))
}

func (o order) csv() string {
	return fmt.Sprintf(`%d,%s,%s,%s,%s,%t,"{""tier"":""%s"",""score"":%s,""tags"":[""%s""]}"`,
		o.id, o.name, o.country, o.amount, o.created, o.active, o.tier, o.score, strings.Join(o.tags, `"",""`))
}

// fixture writes the table as CSV and as JSON lines, once per directory and size.
func fixture(dir string, rows int) (csv, jsonl string, err error) {
	name := fmt.Sprintf("orders-%d", rows)
	csv, jsonl = filepath.Join(dir, name+".csv"), filepath.Join(dir, name+".jsonl")
	if _, err := os.Stat(jsonl); err == nil {
		return csv, jsonl, nil
	}
	c, err := os.Create(csv)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	j, err := os.Create(jsonl + ".tmp")
	if err != nil {
		return "", "", err
	}
	defer j.Close()
	cw, jw := bufio.NewWriterSize(c, 1<<20), bufio.NewWriterSize(j, 1<<20)
	fmt.Fprint(cw, "id,first_name,country,amount,created_at,active,attributes\r\n")
	orders(rows, func(o order) {
		cw.WriteString(o.csv())
		cw.WriteString("\r\n")
		jw.WriteString(o.json())
		jw.WriteByte('\n')
	})
	if err := cw.Flush(); err != nil {
		return "", "", err
	}
	if err := jw.Flush(); err != nil {
		return "", "", err
	}
	return csv, jsonl, os.Rename(jsonl+".tmp", jsonl)
}
