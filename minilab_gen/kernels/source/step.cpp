// A step: rows of many sequences through all layers.
#include "step.h"

#include <algorithm>
#include <cstring>

#include "rules.h"

namespace mlk {

namespace {

int check(const Model& m, const mlk_step& s, const mlk_listing& listing) {
    if (!s.tokens) return fail("a step with logprobs must have room for its tokens");
    for (int o = 0; o < s.outputs; o++) {
        if (listing.counts[o] < -1 || listing.counts[o] > listing.most)
            return fail("counts must be -1 to %d, got %d for output %d", listing.most, listing.counts[o], o);
        if (listing.judged[o] < -1 || listing.judged[o] >= m.w->shape.vocab)
            return fail("judged ids must be below %d, got %d for output %d", m.w->shape.vocab, listing.judged[o], o);
    }
    return 0;
}

int check(const Model& m, const mlk_step& s) {
    if (s.rows < 1 || s.outputs < 0) return fail("a step must have at least 1 row, got %d", s.rows);
    for (int r = 0; r < s.rows; r++) {
        if (s.ids[r] < 0 || s.ids[r] >= m.w->shape.vocab)
            return fail("ids must be below %d, got %d in row %d", m.w->shape.vocab, s.ids[r], r);
        if (s.slots[r] < 0 || s.slots[r] >= m.slots)
            return fail("slots must be below %d, got %d in row %d", m.slots, s.slots[r], r);
        if (s.positions[r] < 0 || s.positions[r] >= m.w->shape.context)
            return fail("positions must be below the context of %d, got %d in row %d", m.w->shape.context,
                        s.positions[r], r);
        if (r && s.slots[r] == s.slots[r - 1] && s.positions[r] != s.positions[r - 1] + 1)
            return fail("a slot's positions must ascend by 1, got %d after %d in row %d", s.positions[r],
                        s.positions[r - 1], r);
    }
    for (int o = 0; o < s.outputs; o++)
        if (s.output_rows[o] < (o ? s.output_rows[o - 1] + 1 : 0) || s.output_rows[o] >= s.rows)
            return fail("output rows must ascend and be below %d, got %d", s.rows, s.output_rows[o]);
    return s.listing ? check(m, s, *s.listing) : 0;
}

// The rows of each sequence. A slot whose rows do not stand together is an error.
int find_runs(Model& m) {
    const mlk_step& s = m.step;
    m.run_count = 0;
    for (int r = 0; r < s.rows; r++) {
        if (r && s.slots[r] == s.slots[r - 1]) m.runs[m.run_count - 1].count++;
        else m.runs[m.run_count++] = {r, 1};
    }
    uint8_t* seen = reinterpret_cast<uint8_t*>(m.lists.floats()) + m.lists_bytes;
    memset(seen, 0, static_cast<size_t>(m.slots));
    for (int i = 0; i < m.run_count; i++) {
        uint8_t& slot = seen[s.slots[m.runs[i].first]];
        if (slot) return fail("the rows of slot %d must stand together", s.slots[m.runs[i].first]);
        slot = 1;
    }
    return 0;
}

// Room for a step of so many rows.
bool make_room(Model& m, int rows, int outputs) {
    const int64_t n = rows, lists = n * 4 + 64;  // runs and units of two numbers, then bundles and progress
    m.lists_bytes = lists * 8;
    bool is_there = m.lists.at_least(lists * 2 + m.slots / 4 + 1) && m.x.at_least(n * m.w->d_model) &&
                    m.qkv_rows.at_least(n * m.w->qkv) && m.mixed_rows.at_least(n * m.w->mixed) &&
                    m.hidden.at_least(n * m.w->d_hidden) && (!m.w->settles || m.added.at_least(n * m.w->d_model)) &&
                    m.logits.at_least(int64_t{outputs} * m.w->head.panels * LANES);
    const int64_t widest = std::max({m.w->shape.d_model, m.w->shape.d_hidden, m.w->shape.heads * m.w->shape.head_dim});
    for (int t = 0; is_there && t < m.team.made(); t++) {
        Own& own = m.own[t];
        is_there = own.normed.at_least(n * m.w->d_model) && own.gates.at_least(n * LANES) &&
                   own.wide.at_least(widest * LANES * WIDEST) && own.scores.at_least(6 * padded(m.w->shape.context)) &&
                   own.draw.at_least(m.w->shape.vocab);
    }
    if (!is_there) return false;
    m.runs = reinterpret_cast<Run*>(m.lists.floats());
    m.units = m.runs + n + 1;
    m.bundles = reinterpret_cast<int32_t*>(m.units + n + 1);
    m.progress = reinterpret_cast<std::atomic<uint32_t>*>(m.bundles + n + 2);
    return true;
}

}  // namespace

int run_step(Model& m, const mlk_step& step) {
    if (check(m, step)) return -1;
    m.step = step;
    if (!make_room(m, step.rows, step.outputs)) return fail("there is no memory for a step of %d rows", step.rows);
    if (find_runs(m)) return -1;
    m.steps++;
    const int bundles = bundles_of(m, step.rows);
    if (bundles) run_bundles(m, bundles);
    else run_stages(m);
    return 0;
}

}  // namespace mlk
