"""The sentences that simulated engines speak. Anything readable does; these say what is being
seen."""

SENTENCES = (
    "This answer comes from a simulated engine: it keeps the books of a real one, without a model.",
    "Its steps take as long as those of a seven billion parameter model on a small accelerator.",
    "Each request holds blocks of key and value memory, and the blocks grow by one token a step.",
    "When the blocks run out, the youngest request is set back and computed again later.",
    "A long prompt makes everyone else wait a moment, for prefills are not cut into pieces.",
    "The freest instance gets the next request, and freeness is counted in decode steps.",
    "An urgent request passes the queue, and its instance keeps some memory free for it.",
    "Morning light moved slowly over the harbour while the first ferry took on its passengers.",
    "The captain counted the cars twice, as she did every day, and then gave the signal to leave.",
    "Out on the water the wind was fresh, and the gulls followed the ship for half an hour.",
    "A child asked why the sea was not the same colour everywhere, and nobody had a short answer.",
    "Some of the passengers read, some slept, and an old man told a story about a storm.",
    "When the island came into view, the engine grew quieter and the ropes were made ready.",
    "On the pier a baker had opened his door, and the smell of bread reached the deck.",
    "Nothing was lost on the way, although two travellers changed ships in mid-journey.",
    "They had not noticed, since their luggage had been carried across while they talked.",
    "That is how it should be: the journey belongs to the traveller, not to the ship.",
    "In the evening the same boats came back, and the lamps were lit along the quay.",
    "Whoever had time stayed for a while and watched the last of them turn into the harbour.",
    "Tomorrow the tide will be an hour later, and the timetable on the wall already says so.",
)
